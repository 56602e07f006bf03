"""Webhooks in the database: the endpoints of tenants, and the outbox of deliveries to them.

Start with `outbox.py`. Imports the tables and `shared/webhooks`.
"""
