"""Filters of a corpus: secrets and personal data, found in many texts at a time.

Start with `redactors.py`. Imports `shared` below it.
"""
