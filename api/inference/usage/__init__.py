"""Usage of API keys: token counts taken from vLLM's own responses, counted and flushed to the database.

Start with `meter.py`. Imports `shared` and `api.errors`.
"""
