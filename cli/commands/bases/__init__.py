"""``mens base``: the catalogue of base models on this machine: build a tiny one, add, dequantise, list, remove.

Start with `commands.py`. Imports `cli.client`, `cli.standalone` and `shared`.
"""
