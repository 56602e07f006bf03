"""Routes of uploaded files: OpenAI's `/v1/files` and `/v1/uploads`, and a file's rows as a base is trained on them.

Start with `files.py`. Imports what other routes import.
"""
