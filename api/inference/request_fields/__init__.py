"""The fields of a model request: their names, types and limits, and the current meaning of older ones. Pure.

Start with `known.py`: a field that is not read is refused and never dropped. Imports `shared.errors`; no route, no
settings.
"""
