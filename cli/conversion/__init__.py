"""Converts other programs' files to Mens' rows, with every row accounted for: written, changed by named rules, or
dropped for a reason.

Start with `convert.py`. Imports `cli.output` and `shared`; `openai_migration` converts OpenAI's files with the same rules.
"""
