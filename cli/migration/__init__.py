"""Leaving OpenAI: what a key can reach is saved as it came, asked for its answers, and converted.

Start with `archive/export.py`. Every step reads the folder of the one before. Imports `shared`.
"""
