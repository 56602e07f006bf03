"""Fault trials: a whole installation, a real fault while jobs and callers are active, and a verdict on the effects.

Start with `trials.py`, the table; `python -m tests.system.fault_trials --help` runs it. `tests/system/test_outages.py` runs the cheap ones.
"""
