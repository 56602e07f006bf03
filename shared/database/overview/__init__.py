"""Views for operators: the audit log, an overview of tenants, counts of jobs and webhooks, and users of a base.

Start with `tenants.py`. Imports `shared.database.queueing`, `shared.database.webhooks` and below.
"""
