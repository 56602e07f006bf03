"""What ends an attempt that uses more than it may, or holds its GPU and gets nowhere. No torch.

Start with `rules.py`. Imports `shared.errors` and `worker.machine`.
"""
