"""``mens tenants`` and ``mens usage``: what tenants may have, and what they have used.

Start with `quotas.py`. Imports `cli.client` and `cli.commands.keys`.
"""
