"""Rate limits of API keys: requests per minute and requests in flight, kept in Valkey, or in the process while Valkey
is unavailable.

Start with `limiter.py`. Imports `shared` and `api.errors`.
"""
