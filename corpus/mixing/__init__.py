"""The mix: sources with weights become one training file, its validation file, their provenance, and a report.

Start with `mix.py`. Imports `corpus`, `shared.datasets` and other packages of `shared`.
"""
