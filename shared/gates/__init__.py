"""Gates: what must be shown of an adapter before it may answer for an alias. Pure: no database, no HTTP.

Read `policy.py` for what is asked, `evidence.py` for what is known, `evaluate.py` for the judgement, `receipt.py` for its record.
"""
