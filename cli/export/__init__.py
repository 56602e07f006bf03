"""An adapter in the layouts of other programs: what it is written as, for whom, and how they are told of it.

Start with `formats.py`. Imports `shared` and `cli.client`.
"""
