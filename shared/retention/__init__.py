"""Retention: `mens retention` and the worker delete old artifacts by the same rules. Verification of the stored ones.

Start with `policy.py`, or with `verification.py` for the rest. Imports `shared.database`, `shared.artifacts` and below.
"""
