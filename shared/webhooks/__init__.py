"""Webhooks: which events there are, where they may be sent, and how they are signed.

Start with `events.py`. Imports `shared.errors` and standardwebhooks.
"""
