"""The tables. Rows stay inside `shared`; other tiers see the frozen values that the operations return.

Start with `jobs.py`. Imports `shared.database.tenancy` alone.
"""
