"""Derive vLLM's command line and environment from settings and a base model. Without side effects, so that golden files
can freeze the result.

Start with `prepare.py`. Imports `shared` and `serving.settings`, but not vLLM.
"""
