"""Signing in to the console: from where it is possible, and the cookie that is one half of a sign-in.

Start with `transport.py`. Imports `shared`, `api.settings` and `api.errors`; no route.
"""
