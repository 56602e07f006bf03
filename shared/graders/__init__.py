"""Graders of answers: OpenAI's graders in their wire format, which all comparisons of models use.

Start with `grading.py`. Imports `errors`; nothing here sends a request or runs a user's code.
"""
