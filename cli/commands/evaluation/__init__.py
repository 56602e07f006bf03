"""``mens eval``: evaluations and benchmark suites of models that are served.

Start with `evals.py`. Imports `cli.evaluation`, `cli.client` and `shared`.
"""
