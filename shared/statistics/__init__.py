"""Paired comparisons of scores: intervals, p-values, non-inferiority, and the smallest detectable difference.

Start with `paired.py`. Imports the standard library alone (decision 0019).
"""
