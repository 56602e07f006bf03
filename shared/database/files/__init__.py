"""Uploaded files: their verbs, those of uploads in several parts, and when a stored blob is no longer needed.

Start with `files.py`; `uploads.py` has the verbs of uploads in parts, `contents.py` what both keep: blobs, quotas, and what a
repeated request finds. Imports `shared.database` and below.
"""
