"""``mens policies`` and ``mens receipts``: requirements for adapters, and the outcomes of judging them.

Start with `policies.py`. Imports `cli.client`, `cli.output`, `shared.gates`.
"""
