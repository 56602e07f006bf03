"""Names that requests put into ``model``: aliases, and names of another provider's models.

Start with `aliases.py`. Imports `shared.database.visibility` and below.
"""
