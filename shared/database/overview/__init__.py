"""What operators look at: the audit log, tenants side by side, counts of jobs and webhooks, and who uses a base.

Start with `tenants.py`. Imports `shared.database.scheduling`, `shared.database.webhooks` and below.
"""
