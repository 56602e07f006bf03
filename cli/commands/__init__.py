"""The commands of `mens`, one file per command.

Start with `jobs/train.py` (`mens train`). Imports `cli.client`, `cli.standalone`, `cli.output` and `shared`.
"""
