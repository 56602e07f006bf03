"""Ollama's view of chats: its requests as OpenAI's, OpenAI's responses as its own.

Start with `requests.py`. Imports `shared`, `api.web` and what is below; no route.
"""
