"""Writing the audit log: the actor, the audited rows, and their logged fields.

Start with `recorder.py`. Imports `shared.database.tables` and `shared.observability`.
"""
