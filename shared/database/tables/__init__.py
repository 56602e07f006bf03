"""The tables. Rows stay inside `shared`; other tiers see the frozen values that the verbs return.

Start with `jobs.py`. Imports `shared.database.tenancy` alone.
"""
