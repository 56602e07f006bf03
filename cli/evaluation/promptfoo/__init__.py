"""promptfoo's configuration, read as evals and written from one. Parts without a counterpart are named, never dropped
silently.

Start with `reading.py`. Imports `cli.evaluation.eval_file` and `shared`.
"""
