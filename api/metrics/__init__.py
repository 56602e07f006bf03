"""Metrics of an API process: what it counts itself, and what it reads of the installation when it is scraped.

Start with `requests.py`. Imports `shared`; no route, no `Services`.
"""
