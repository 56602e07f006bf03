"""Rules that end an attempt that exceeds its limits, or holds its GPU without progress. No torch.

Start with `rules.py`. Imports `shared.errors` and `worker.machine`.
"""
