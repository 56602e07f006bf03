"""What the trainer sees: a JSONL file as token ids and labels, in order, packed into batches.

Start with `dataset.py`. Imports `shared` and `worker.training.metrics`; nothing of `model/` or `reporting/`.
"""
