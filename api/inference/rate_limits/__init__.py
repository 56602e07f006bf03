"""Rate limits of API keys: requests a minute and requests in flight, kept in Valkey, or in the process while it is away.

Start with `limiter.py`. Imports `shared` and `api.errors`.
"""
