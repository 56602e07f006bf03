"""The commands of `mens`, one file per command.

Start with `jobs.py` (`mens train`). Imports `cli.client`, `cli.standalone`, `cli.output` and `shared`.
"""
