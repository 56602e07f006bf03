"""The archive of a provider's projects: what is fetched, how it is kept, and how it is read without the provider.

Start with `export.py`. Imports `shared`.
"""
