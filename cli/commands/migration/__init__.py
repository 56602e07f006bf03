"""The steps of ``mens migrate openai`` that are not in `cli/commands/migrate.py`, and what their commands share.

Start with `offline.py`. Imports `cli.migration`, `cli.client` and below.
"""
