"""Metrics of an API process: its own counters, and its readings of the installation at each scrape.

Start with `requests.py`. Imports `shared`; no route, no `Services`.
"""
