"""The archive of a provider's projects: fetching it, storing it, and reading it without the provider.

Start with `export.py`. Imports `shared`.
"""
