"""Scripts of the Makefile for maintainers; no part of the product, its wheel or its images.

Start with `measure.py`, which `make measure` runs. Imports the tiers whose code it describes; no tier imports it.
"""
