"""Webhooks: the events, the allowed targets, and the signatures.

Start with `events.py`. Imports `shared.errors` and standardwebhooks.
"""
