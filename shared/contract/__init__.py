"""The contract (everything a job may request) and the execution plan that it becomes. Pure.

Start with `sections.py` (the fine-tune contract) and `plan.py` (contract → plan). Imports `shared.base_models` and
below.
"""
