"""An adapter for Ollama: the form of a base's chat template, that form as a Go template, and the Modelfile around it.

Start with `modelfile.py`. Imports `shared`, but not the command line.
"""
