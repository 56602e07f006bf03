"""An adapter's own documents: the self-evaluation of its run, and the README that the Hugging Face hub reads.

Start with `self_evaluation.py`; `readme.py` writes the card from records alone. `evaluation_rows.py` has the measured
rows. Imports `shared.statistics` and `shared.artifacts` and below; no SQL and no torch.
"""
