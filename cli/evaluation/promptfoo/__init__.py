"""promptfoo's configuration, read as evals and written from one. What has no counterpart is named, never dropped in silence.

Start with `reading.py`. Imports `cli.evaluation.eval_file` and `shared`.
"""
