"""Uploaded files: the operations on them and on uploads in several parts, and when a stored blob is no longer needed.

Start with `files.py`; `uploads.py` has the operations on uploads in parts, and `contents.py` the code that both share:
blobs, quotas, repeated requests. Imports `shared.database` and below.
"""
