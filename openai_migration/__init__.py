"""Migration from OpenAI: saves everything that a key can read, records answers with it, and converts it.

Start with `archive/export.py`. Every step reads the folder of the previous step; `commands/` has the steps as commands.
Imports `shared`, `corpus.filters`, and from `cli` the client, the conversion of rows, and their dependencies.
"""
