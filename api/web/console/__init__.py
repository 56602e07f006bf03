"""The web console's files, as they are sent: read, joined and compressed when the API starts.

Start with `files.py`. Imports no other package.
"""
