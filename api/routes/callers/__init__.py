"""Routes about the caller: keys, `GET /v1/me`, and sign-ins to the console.

Start with `me.py`. Imports `api.web` and below.
"""
