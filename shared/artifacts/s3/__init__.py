"""Storage in a bucket: a client with bounded retries and errors with codes, and the storage on it.

Start with `storage.py`. Imports boto3, and from `shared` the storage's interface, settings, hashing and errors.
"""
