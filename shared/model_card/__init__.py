"""What an adapter says of itself: the self-evaluation of its run, and Markdown that the Hugging Face hub reads.

Start with `self_evaluation.py`. Imports `shared.artifacts` and below; no SQL.
"""
