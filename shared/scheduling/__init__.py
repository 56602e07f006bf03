"""Decide which queued job is claimed next and what a tenant may run, and estimate starts of jobs. Pure: no database.

Start with `fair_queue.py`. Imports no other package of Mens.
"""
