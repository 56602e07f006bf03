"""Data that callers poll for, read from the database once for all of them: versions, changes and new events of jobs,
places of queued ones, and whether the database responds.

Start with `job_versions.py`. Imports `shared`; no route, no `Services`.
"""
