"""``mens tenants``, ``permissions``, ``usage``, ``webhooks``, ``audit``: what tenants may have, have used and changed, and where they hear of it.

Start with `quotas.py`. Imports `cli.client` and `cli.commands.keys`.
"""
