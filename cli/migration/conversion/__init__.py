"""Converts OpenAI's rows to Mens' rows, with each line of a file accounted for.

Start with `files.py`. Imports `cli.conversion`, `cli.migration`'s other parts and `shared`.
"""
