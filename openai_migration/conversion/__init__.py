"""Converts OpenAI's rows to Mens' rows, with each line of a file accounted for.

Start with `files.py`. Imports `cli.conversion`, the steps before and `shared`.
"""
