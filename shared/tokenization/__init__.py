"""Convert chats to token ids and labels, without transformers, so that the trainer and the API agree on every token.

Start with `labels.py`. Imports `shared.datasets`, `shared.base_models` and below.
"""
