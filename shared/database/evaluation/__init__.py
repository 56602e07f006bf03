"""Evals, their runs, and each item's result; values are JSON here, `shared/evaluation/` has their types.

Start with `evals.py`. Imports `shared.database.visibility` and below.
"""
