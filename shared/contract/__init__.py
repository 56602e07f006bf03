"""The contract (everything a job may request) and the execution plan that it becomes. Pure.

Start with `contracts.py` (what a job may request, of the parts in `sections.py`) and `plan.py` (contract → plan).
Imports `shared.base_models` and below.
"""
