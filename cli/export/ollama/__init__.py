"""An adapter for Ollama: the form of a base's chat template, that form as a Go template, and the Modelfile around it.

Start with `modelfile.py`. Imports `shared` and nothing of the command line.
"""
