"""Preference tuning (DPO, KTO): pairs of answers and rated ones, the reference's scores, and the losses that compare both.

Start with `dpo.py`. Imports `shared` and the rest of `worker.training` except `reporting/` and `self_evaluation/`.
"""
