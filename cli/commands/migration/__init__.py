"""The steps of ``mens migrate openai`` that are not in `cli/commands/migrate.py`, and their shared parts.

Start with `offline.py`. Imports `cli.migration`, `cli.client` and below.
"""
