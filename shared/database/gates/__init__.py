"""Policies and receipts as they are stored: which policy governs what, and what came of judging adapters.

Start with `policies.py`. Imports `shared.database.change_counter` and below. Whether a move has its evidence is decided in
`shared/database/names/move_evidence.py`.
"""
