"""The serving replicas as the gateway sees them: choice of a replica, health, failover, the HTTP client.

Start with `pool.py`. Imports `shared` and `api.errors`.
"""
