"""Metrics of a worker process: what it counts, and what its trainers and GPUs are like now.

Start with `counters.py`. Imports `shared`.
"""
