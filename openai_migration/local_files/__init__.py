"""Creates an archive from a team's own files, without OpenAI's API: rows, recorded answers and graders.

Start with `importing.py`. Imports `openai_migration.archive` and the modules next to it, and `shared`.
"""
