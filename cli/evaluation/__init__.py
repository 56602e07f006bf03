"""Evaluations as people run them: benchmark suites of another program against an installation.

Start with `suites/harness.py`. Imports `cli.client` and `shared`.
"""
