"""Adapters that one tenant lets another one use.

Start with `checkpoint_permissions.py`. Imports `shared.database.adapters`, `shared.database.deletions` and below.
"""
