"""Stored artifacts: blobs named by their digest, and folders of adapters and models named by their manifest's digest.

Start with `storage.py`, the interface. Imports `shared.contract` and below; no SQL.
"""
