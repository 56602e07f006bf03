"""``mens chat``: one question, a conversation, or the same questions to two models.

Start with `conversation.py`. Imports `cli.client`.
"""
