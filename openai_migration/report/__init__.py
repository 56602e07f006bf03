"""The report for sign-off, as one HTML file: for each tuned model, what was kept, lost and proven.

Start with `facts.py`. Imports `shared` and the preceding steps.
"""
