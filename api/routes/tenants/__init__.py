"""Quotas, usage, audit, checkpoint permissions and webhooks of tenants; and a list of all tenants, for operators.

Start with `quotas.py`. Imports what every route imports (`api/routes`).
"""
