"""``mens corpus``: training files made from tables, code, documents and models.

Start with `commands.py`. Imports `cli.client` and `shared`.
"""
