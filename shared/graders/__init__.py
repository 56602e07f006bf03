"""Graders of answers: OpenAI's, in their wire format, one set for all comparisons of models.

Start with `grading.py`. Imports `errors`; nothing here sends a request or runs a user's code.
"""
