"""An installation on one machine: the home folder, the programs of `mens up` and their supervision.

Start with `stack.py`. Imports `cli.client` and `shared`.
"""
