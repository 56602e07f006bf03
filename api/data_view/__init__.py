"""Rows of a data file in the form in which a base would be trained on them, and the report on a file, outside any job.

Start with `readers.py`, which asks a contained process (`child_process.py`), because the rows belong to a tenant and a
base's template is a program. Imports `shared` and `api.errors` only.
"""
