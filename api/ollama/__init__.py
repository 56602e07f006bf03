"""Ollama's view of chats: converts its requests to OpenAI's, and OpenAI's responses to its own.

Start with `requests.py`. Imports `shared`, `api.web` and the layers below; no route.
"""
