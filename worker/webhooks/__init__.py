"""Delivery of webhooks, by the control worker.

Start with `dispatcher.py`. Imports `shared/webhooks` and `shared/database/webhooks`.
"""
