"""Shared parts of all routes: authentication, bodies, parameters of paths and queries, the access log.

Start with `auth.py`. Imports `shared`, `api.services`, `api.inference` and `api.errors`; no route.
"""
