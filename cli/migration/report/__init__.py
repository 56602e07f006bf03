"""The report for the person who signs: what was kept, lost and proven of each tuned model, as one HTML file.

Start with `facts.py`. Imports `shared` and the steps before.
"""
