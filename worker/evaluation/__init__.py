"""Evaluations: send items to models through the API, judge their answers, and store each item's outcome.

Start with `run.py`. Imports `shared` and `worker.settings`; nothing here loads torch.
"""
