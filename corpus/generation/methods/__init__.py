"""Methods by which a model writes the value of a column, one per file.

Start with `method.py`. Imports `corpus`, `shared.graders` and `shared.sandbox`.
"""
