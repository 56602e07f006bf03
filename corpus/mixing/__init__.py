"""The mix, which combines weighted sources into one training file, its validation file, their provenance, and a report.

Start with `mix.py`. Imports `corpus`, `shared.datasets` and other packages of `shared`.
"""
