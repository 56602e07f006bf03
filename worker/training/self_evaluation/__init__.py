"""Self-evaluation of a finished run: the adapter against its base on the same rows, and sample answers of both.

Start with `evaluate.py`. Imports `shared` and the rest of `worker.training` except `reporting/`.
"""
