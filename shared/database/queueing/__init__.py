"""The queue in the database: GPU time of attempts, quotas of tenants, and the input of the rule of the queue.

Start with `queue_state.py`. Imports the tables and `shared/scheduling`.
"""
