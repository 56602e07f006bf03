"""A request to a model, from its body to the last byte of the response.

Start with `gateway.py`. `replicas/` chooses a replica and sends the request to it, `rate_limits/` admits a key,
`usage/` counts tokens. Imports `shared` and `api.errors`; no route, no `Services`.
"""
