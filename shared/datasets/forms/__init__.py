"""Forms in which other programs write rows, tools and files: recognised by their content, and named in every error.

Start with `recognition.py`. Imports `shared.datasets.rows` alone; `cli.conversion` converts what is recognised here.
"""
