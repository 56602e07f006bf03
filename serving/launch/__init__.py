"""Derive vLLM's command line and environment from settings and a base model. Pure, with golden files.

Start with `prepare.py`. Imports `shared` and `serving.settings`; no vLLM.
"""
