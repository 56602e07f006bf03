"""A limited child process: how it is started, read and ended, and the limits that it sets for itself.

Start with `process.py`, for the parent; `limits.py` is for the child. The one mechanism behind Python graders
(`shared/sandbox`), compilers (`shared/compilers`), language checkers (`shared/checkers`), grammar compilation
(`serving/grammars`) and the check of a tenant's chat template (`worker/bases`). Imports the standard library only.
"""
