"""What is old enough to be deleted, and its deletion: `mens retention` and the worker run the same rules. Whether the rest is there.

Start with `policy.py`, or with `verification.py` for the rest. Imports `shared.database`, `shared.artifacts` and below.
"""
