"""``mens train`` and ``mens jobs``: create, list, watch, merge, cancel, pause and resume jobs.

Start with `train.py`. Imports `cli.client`, `cli.export` and `shared`.
"""
