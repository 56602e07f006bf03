"""Rules that make training rows from units, one file per rule. Every answer passes the checker of its language.

Start with `rule.py`. Imports `shared.checkers` and `corpus`.
"""
