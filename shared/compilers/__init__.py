"""Check whether a compiler of this machine accepts code that a model wrote. Compilers are the only programs that are
executed within the sandbox.

Start with `compiled.py`. `__main__.py` runs within bubblewrap before the compiler replaces it. Imports `sandbox`,
`errors`.
"""
