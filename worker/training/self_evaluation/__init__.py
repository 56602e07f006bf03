"""Self-evaluation of a finished run: the adapter against its base on the same rows, and sample answers of both. It also
finds what a running training forgets: the rows of the replay file whose loss rises.

Start with `evaluate.py`. Imports `shared` and the rest of `worker.training`.
"""
