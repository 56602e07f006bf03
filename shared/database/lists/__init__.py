"""Which rows a list has.

Start with `job_filter.py`. Imports `shared.database.records` and `shared.database.tables`.
"""
