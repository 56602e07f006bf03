"""Observability of a process: metrics for Prometheus, log lines, traces.

Start with `metrics_listener.py`. Imports nothing but `shared.errors`, so that every tier and the job queue may use it.
"""
