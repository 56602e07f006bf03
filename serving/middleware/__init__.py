"""ASGI middleware in front of vLLM's routes: an allow-list, requests in flight, unloading, graceful shutdown.

Start with `guard.py`. Imports `shared`, `serving.process` and the modules that it needs, but not vLLM.
"""
