"""Checks before training: the same ones for API, worker and command line.

Start with `pipeline.py`; `types.py` has what goes in and out. Imports every package of `shared` but `database` and
`retention`.
"""
