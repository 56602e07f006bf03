"""What two tiers must agree on: types that cross a process, byte formats, rules, and the database. Nothing else.

Start with `contract/` (what a job may request) and `database/` (what becomes of it); `errors.py` has every error code.
A module is admitted when at least two tiers use it. Imports no web framework, no GPU library and no tier.
"""
