"""Paired comparisons of scores: intervals, p-values, non-inferiority, and the smallest difference that could be seen.

Start with `paired.py`. Imports the standard library alone (decision 0019).
"""
