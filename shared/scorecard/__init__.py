"""Scorecards: how well models write code that compiles, with repairs; and whether one may replace another.

Start with `spec.py`. Imports `errors`, `hashing`, `checkers`, `statistics`. Nothing here sends a request: who samples
is the caller's.
"""
