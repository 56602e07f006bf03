"""Whether a compiler of this machine takes a text that a model wrote: the one program that may be executed within the sandbox.

Start with `compiled.py`. `__main__.py` is what runs within bubblewrap before the compiler takes its place. Imports `sandbox`, `errors`.
"""
