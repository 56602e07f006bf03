"""Few wrappers are entered for a request: each one is entered by every request and, where it sends, by every message."""

from __future__ import annotations

from fastapi import FastAPI

MOST_WRAPPERS = 3


def test_request_passes_few_wrappers(app: FastAPI) -> None:
    assert len(app.user_middleware) <= MOST_WRAPPERS
