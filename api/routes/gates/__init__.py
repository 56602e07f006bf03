"""Routes of what an adapter has to show: policies, what they govern, receipts, promotions.

Start with `policies.py`. Imports `api.web` and below, and the parameters of `api.routes.aliases`.
"""
