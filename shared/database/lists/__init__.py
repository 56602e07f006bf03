"""Filters and pages of lists, and summaries and changes of jobs.

Start with `job_filter.py`. Imports `shared.database.records` and `shared.database.tables`.
"""
