"""What operators look at: the audit log, tenants side by side, and counts of jobs and webhooks.

Start with `tenants.py`. Imports `shared.database.scheduling`, `shared.database.webhooks` and below.
"""
