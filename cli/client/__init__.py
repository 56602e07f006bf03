"""Client of an installation: its address and key, HTTP requests, errors with commands as remedies, shortened ids,
progress of a job.

Start with `connection.py`. Imports `shared`.
"""
