"""What tenants may have, have used and permit each other, and where they hear of it: quotas, usage, checkpoint permissions, webhooks.

Start with `quotas.py`. Imports what every route imports (`api/routes`).
"""
