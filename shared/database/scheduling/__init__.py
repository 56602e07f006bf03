"""The queue in the database: GPU time of attempts, quotas of tenants, and the state that the rule of the queue decides from.

Start with `queue_state.py`. Imports the tables and `shared/scheduling`.
"""
