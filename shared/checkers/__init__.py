"""Whether a text is code of a language: what is wrong with it, and what it is made of. Nothing here runs the code.

Start with `checker.py`. Imports `errors`. `contained.py` is the way in for texts that a model or a tenant wrote.
"""
