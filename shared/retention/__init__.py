"""Deletion of old artifacts, by the same rules in `mens retention` and the worker; and verification of stored
artifacts.

Start with `policy.py`, or for the verification with `verification.py`. Imports `shared.database`, `shared.artifacts`
and below.
"""
