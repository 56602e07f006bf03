"""Client of an installation: its address and key, HTTP requests, errors as commands, shortened ids, progress of a job.

Start with `connection.py`. Imports `shared`.
"""
