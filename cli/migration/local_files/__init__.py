"""An archive from files that a team has, without OpenAI's API: rows, recorded answers and graders.

Start with `importing.py`. Imports `cli.migration.archive` and what is beside it, and `shared`.
"""
