"""Rows of preferences, pairs of a preferred and a rejected answer: their forms, the pass over a file, and its findings.

Start with `rows.py`. Imports the rest of `shared.datasets`.
"""
