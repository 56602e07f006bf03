"""Routes of adapter requirements: policies, their assignments, receipts, promotions.

Start with `policies.py`. Imports `api.web` and below, and the parameters of `api.routes.aliases`.
"""
