"""Training files made from tables, code, documents and models: stages, their files, and the origin of every row.

Start with `shards.py`. Imports `shared`, without torch, HTTP and typer.
"""
