"""Which queued job is claimed next, what a tenant may run, and when a job is expected to start. Pure: no database.

Start with `fair_queue.py`. Imports nothing of Mens.
"""
