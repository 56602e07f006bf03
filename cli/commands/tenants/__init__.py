"""``mens tenants``, ``mens usage`` and ``mens webhooks``: what tenants may have and have used, and where they are told of it.

Start with `quotas.py`. Imports `cli.client` and `cli.commands.keys`.
"""
