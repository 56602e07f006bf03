"""Rules that make training rows of units, one file for each. Every answer passes the checker of its language.

Start with `rule.py`. Imports `shared.checkers` and `corpus`.
"""
