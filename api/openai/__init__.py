"""OpenAI's view of fine-tuning jobs and files: its types, and the translation from and to our own.

Start with `fine_tuning.py`. Imports `shared` and `api.errors`; no route.
"""
