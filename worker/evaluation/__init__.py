"""Evaluations: asks models through the front door, judges their answers, and stores what came of each item.

Start with `run.py`. Imports `shared` and `worker.settings`; nothing here loads torch.
"""
