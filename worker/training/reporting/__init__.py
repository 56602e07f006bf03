"""What a run reports: telemetry, metrics, trackers, the summary and the model card.

Start with `telemetry.py` (while it trains) or `report.py` (when it is done). Imports anything of `worker.training` below it.
"""
