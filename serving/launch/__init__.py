"""Derive vLLM's command line and environment from settings and a base model. The result depends on nothing else, so
golden files can record it.

Start with `prepare.py`. Imports `shared` and `serving.settings`, but not vLLM.
"""
