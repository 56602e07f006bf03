"""What two tiers must agree on: types that cross a process, byte formats, rules, and the database. Nothing else.

A module is admitted when at least two tiers use it. Imports no web framework, no GPU library and no tier.
"""
