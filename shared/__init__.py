"""Everything that two tiers must agree on: types that cross a process, byte formats, rules, and the database.

Start with `contract/` (everything a job may request) and `database/` (its state and results); `errors.py` has every
error code. A module is admitted when at least two tiers use it. Imports no web framework, no GPU library and no tier.
"""
