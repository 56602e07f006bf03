"""The report for the person who signs: which parts of each tuned model were kept, lost and proven, as one HTML file.

Start with `facts.py`. Imports `shared` and the steps before.
"""
