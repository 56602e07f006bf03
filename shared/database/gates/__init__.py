"""Policies and receipts as they are stored: which policy governs what, and what came of judging adapters.

What a policy asks is in `shared/gates/`; whether a move has the evidence that it needs, in `shared/database/names/move_evidence.py`.
"""
