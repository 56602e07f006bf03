"""The audit log as it is written: who acts, which rows count, and what of them is kept.

Start with `recorder.py`. Imports `shared.database.tables` and `shared.observability`.
"""
