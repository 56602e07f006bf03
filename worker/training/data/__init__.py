"""The trainer's input: a JSONL file as token ids and labels, in order, packed into batches.

Start with `dataset.py`. Imports `shared` and `worker.training.metrics`; nothing from `model/` or `reporting/`.
"""
