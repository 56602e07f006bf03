"""Scorecards: how well models write code that compiles, when they may repair it; and whether one may take another's place.

Start with `spec.py`. Imports `errors`, `hashing`, `checkers`, `statistics`. Nothing here sends a request: who samples is the caller's.
"""
