"""What callers poll for, read from the database once for all of them: versions and new events of jobs, places of queued ones, whether it answers.

Start with `job_versions.py`. Imports `shared`; no route, no `Services`.
"""
