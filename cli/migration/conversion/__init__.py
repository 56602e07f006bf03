"""OpenAI's rows as Mens' rows, each line of a file accounted for.

Start with `rows.py`. Imports `cli.migration`'s other parts and `shared`.
"""
