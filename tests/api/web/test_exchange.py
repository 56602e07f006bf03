"""Each request enters only a few ASGI wrappers: every request enters each of them, and so does every message of a
wrapper that sends.
"""

from __future__ import annotations

from fastapi import FastAPI

MOST_WRAPPERS = 3


def test_request_passes_few_wrappers(app: FastAPI) -> None:
    assert len(app.user_middleware) <= MOST_WRAPPERS
