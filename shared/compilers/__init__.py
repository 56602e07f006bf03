"""Check whether a compiler of this machine accepts code that a model wrote: the one program executed within the
sandbox.

Start with `compiled.py`. `__main__.py` runs within bubblewrap before the compiler replaces it. Imports `sandbox`,
`errors`.
"""
