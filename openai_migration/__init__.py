"""Leaving OpenAI: everything a key can reach is saved unchanged, used to record answers, and converted.

Start with `archive/export.py`. Every step reads the folder of the previous step; `commands/` has the steps as commands.
Imports `shared`, and of `cli` the client, the conversion of rows, and what both rest on.
"""
