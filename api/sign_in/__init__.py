"""Signing in to the console: the connections that allow it, the cookie that is one half of a sign-in, and the identity
provider.

Start with `transport.py`; with `provider.py` for single sign-on. Imports `shared`, `api.settings` and `api.errors`; no route.
"""
