"""The gate: a new model's answers against the recorded ones of the tuned model that it is to succeed.

Start with `compare.py`. Imports `shared` and the archive.
"""
