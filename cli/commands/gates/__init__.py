"""``mens policies`` and ``mens receipts``: what an adapter has to show, and what came of it.

Start with `policies.py`. Imports `cli.client`, `cli.output`, `shared.gates`.
"""
