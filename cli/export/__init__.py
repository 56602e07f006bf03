"""An adapter in the layouts of other programs: the formats, and the instructions for their runtimes.

Start with `formats.py`. Imports `shared` and `cli.client`.
"""
