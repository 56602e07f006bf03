"""Check whether a string is code of a language, report its faults and its constructs. Nothing here runs the code.

Start with `checker.py`. Imports `errors`. `contained.py` is the entry point for code that a model or a tenant wrote.
"""
