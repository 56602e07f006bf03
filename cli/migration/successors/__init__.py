"""Successors of tuned models: planned, trained, and put in their place on an installation.

Start with `contracts.py`. Imports `cli.migration.archive`, `cli.client` and `shared`.
"""
