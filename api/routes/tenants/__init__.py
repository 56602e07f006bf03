"""What tenants may have, have used and permit each other: quotas, usage, checkpoint permissions.

Start with `quotas.py`. Imports what every route imports (`api/routes`).
"""
