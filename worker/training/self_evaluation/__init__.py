"""Self-evaluation of a finished run: the adapter against its base on the same rows, and sample answers of both. And what a
running one forgets: the rows of its replay file whose loss rises.

Start with `evaluate.py`. Imports `shared` and the rest of `worker.training`.
"""
