"""What crosses a process border, or what two tiers must agree on; nothing else.

A module is admitted when at least two tiers use it and it is a type, a byte format, a rule or the job ledger.
"""
