"""Tables as a source of rows: pages of a query in the order of its key, redacted, and the state from which the next
pull continues.

Start with `pull.py`. Imports `corpus` and the packages that `corpus` imports; SQLAlchemy only in `database.py`.
"""
