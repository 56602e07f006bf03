"""The HTTP API, one file per surface: a route turns HTTP into one call of a lower layer, and its result into HTTP.

Start with `jobs.py` (the native API) or `chat.py` (requests to models). Imports anything of `api` except `api.main`.
"""
