"""Successors of tuned models: they are planned, trained and switched to on an installation.

Start with `contracts.py`. Imports `openai_migration.archive`, `cli.client` and `shared`.
"""
