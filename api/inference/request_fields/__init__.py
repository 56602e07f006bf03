"""The fields of a request to a model: which there are, of which type, how large, and what older ones mean today. Pure.

Start with `known.py`: a field that nobody reads is refused and never dropped.
Imports `shared.errors`; no route, no settings.
"""
