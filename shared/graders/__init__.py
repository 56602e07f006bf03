"""What judges an answer: OpenAI's graders with their wire format, one set for all that compares models.

Start with `grading.py`. Imports `errors`; nothing here sends a request or runs another's code.
"""
