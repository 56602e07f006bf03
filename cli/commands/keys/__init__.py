"""``mens keys``: API keys, over the API or in the database of this machine.

Start with `commands.py`. Imports `cli.client` and `cli.standalone`.
"""
