"""Fault trials: a whole installation, a real fault under its jobs and callers, and a verdict on what became of them.

Start with `trials.py`, the table; `python -m tests.system.fault_trials --help` runs it. `tests/system/test_outages.py` runs the cheap ones.
"""
