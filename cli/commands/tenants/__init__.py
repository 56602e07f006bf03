"""``mens tenants``, ``permissions``, ``usage``, ``webhooks``, ``audit``: quotas, usage, changes and webhooks of
tenants.

Start with `quotas.py`. Imports `cli.client` and `cli.commands.keys`.
"""
