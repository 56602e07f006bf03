"""From chats to token ids and labels, without transformers: the trainer and the API agree on them to the token.

Start with `labels.py`. Imports `shared.datasets`, `shared.base_models` and below.
"""
