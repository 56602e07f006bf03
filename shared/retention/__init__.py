"""What is old enough to be deleted, and its deletion: `mens retention` and the worker run the same rules.

Start with `policy.py`. Imports `shared.database`, `shared.artifacts` and below.
"""
