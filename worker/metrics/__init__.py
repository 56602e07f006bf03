"""Metrics of a worker process: its counters, and the current state of its trainers and GPUs.

Start with `counters.py`. Imports `shared`.
"""
