"""Gates: requirements on an adapter before it may answer for an alias; policies, evidence, receipts.

Start with `evaluate.py`. Imports `shared.scorecard`, `shared.statistics`, `shared.hashing`, `shared.errors`; pure: no database, no HTTP.
"""
