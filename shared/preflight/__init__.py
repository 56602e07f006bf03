"""Checks before training: the same ones for API, worker and command line.

Start with `pipeline.py`; `types.py` has its inputs and results. Imports every package of `shared` except `database` and
`retention`.
"""
