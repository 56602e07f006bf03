"""Evals, their runs, and what came of each item; values are JSON here, `shared/evaluation/` has their types.

Start with `evals.py`. Imports `shared.database.visibility` and below.
"""
