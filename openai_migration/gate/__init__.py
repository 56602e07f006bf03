"""The gate: compares a new model's answers with the recorded ones of the tuned model that it is to replace.

Start with `compare.py`. Imports `shared` and the archive.
"""
