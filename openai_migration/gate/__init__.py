"""The gate: compares a new model's answers with the recorded answers of the tuned model that it will replace.

Start with `compare.py`. Imports `shared` and the archive.
"""
