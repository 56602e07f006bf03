"""Training files made from tables, code, documents and models: stages, their files, and the origin of every row.

Start with `build.py`, which runs all stages, and `shards.py`, the format of their output. Imports `shared`, without
torch, HTTP and typer.
"""
