"""What tenants may have and have used: quotas, usage.

Start with `quotas.py`. Imports what every route imports (`api/routes`).
"""
