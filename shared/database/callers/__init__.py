"""Callers: keys, their secrets, the people of an identity provider, and sign-ins to the console.

Start with `keys.py`. Imports the tables, and `shared/database/audit` for the names of those who sign in.
"""
