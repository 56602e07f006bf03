"""Evaluations: their data and criteria, plans of runs, and results.

Start with `types.py`. Imports `shared.graders`, `shared.statistics` and `errors`; nothing here sends a request.
"""
