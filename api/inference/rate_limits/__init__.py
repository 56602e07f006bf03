"""Rate limits of API keys and tenants: requests per minute, requests in flight and tokens per minute. Valkey keeps the
counts; while it is unavailable, each process keeps its own.

Start with `limiter.py`. Imports `shared` and `api.errors`.
"""
