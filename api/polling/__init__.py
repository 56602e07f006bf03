"""What callers poll for, read from the database once for all of them: new events of jobs, places of queued ones.

Start with `queue_places.py`. Imports `shared.database` and `shared.scheduling`.
"""
