"""Leaving OpenAI: what a key can reach is saved as it came, for as long as OpenAI still has it.

Start with `export.py`. Every step reads the folder of the one before. Imports `shared`.
"""
