"""Successors of tuned models: planned, trained, and switched to on an installation.

Start with `contracts.py`. Imports `cli.migration.archive`, `cli.client` and `shared`.
"""
