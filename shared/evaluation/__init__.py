"""Evaluations: what is judged and by what, what a run of it does, and what came of it.

Start with `types.py`. Imports `shared.graders`, `shared.statistics` and `errors`; nothing here sends a request.
"""
