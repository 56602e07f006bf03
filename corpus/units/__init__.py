"""Files of code and documents, divided into units from which rows are made.

Start with `extraction.py`. Imports `shared.checkers`, `corpus` and `shared.contained`.
"""
