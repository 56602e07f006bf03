"""Scorecards: how well models write code that compiles, with repairs.

Start with `spec.py`. Imports `errors`, `hashing`, `checkers`. Nothing here sends a request; sampling is up to the
caller.
"""
