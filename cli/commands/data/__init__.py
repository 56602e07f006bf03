"""``mens data``: training files, checked and converted before training. Needs no installation.

Start with `commands.py`. Imports `cli.conversion`, `cli.client` and `shared`.
"""
