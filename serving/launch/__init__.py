"""Settings and a base model → vLLM's command line and environment. Pure, with golden files.

Start with `prepare.py`. Imports `shared` and `serving.settings`; no vLLM.
"""
