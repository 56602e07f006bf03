"""Reports of a run: telemetry, metrics, trackers, the summary and the model card.

Start with `telemetry.py` (during training) or `report.py` (after it). Imports anything of `worker.training` below it.
"""
