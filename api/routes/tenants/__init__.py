"""What tenants may have, have used, have changed and permit each other, and where they hear of it; and all of them, for operators.

Start with `quotas.py`. Imports what every route imports (`api/routes`).
"""
