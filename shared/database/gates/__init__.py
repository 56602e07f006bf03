"""Stored policies, their assignments, and the receipts of judged adapters.

Start with `policies.py`. Imports `shared.database.change_counter` and below. Moves are checked for evidence in
`shared/database/names/move_evidence.py`.
"""
