"""Scorecards: how well models write code that compiles, with repairs.

Start with `spec.py`. Imports `errors`, `hashing`, `checkers`. Nothing here sends a request: who samples
is the caller's.
"""
