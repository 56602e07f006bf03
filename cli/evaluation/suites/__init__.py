"""Benchmark suites by lm-evaluation-harness: a separate environment, a child process, and its items as pairs.

Start with `harness.py`. Imports `shared`; the harness itself is never imported here.
"""
