"""Filters of a corpus: secrets, personal data and duplicates, searched for in many texts at a time.

Start with `redactors.py`. Imports `shared` below it.
"""
