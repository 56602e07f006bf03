"""Stored artifacts: blobs under their digest, adapter and model folders under their manifest's.

Start with `storage.py`, the interface. Imports `shared.contract` and below; no SQL.
"""
