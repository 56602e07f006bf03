"""Converts OpenAI's rows to Mens' rows and accounts for each line of a file.

Start with `files.py`. Imports `cli.conversion`, the preceding steps and `shared`.
"""
