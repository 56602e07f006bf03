"""Training files: the row, the check of one line, the pass over a file, duplicates, and the data report.

Start with `rows.py` and `reader.py`. Imports `shared.contract` and below.
"""
