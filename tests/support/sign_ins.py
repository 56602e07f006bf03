"""Signing in as the console's page does, without a browser."""

from __future__ import annotations

import hashlib
from http.cookies import SimpleCookie
from typing import Any

TOKEN = "t" * 43
CHALLENGE = hashlib.sha256(TOKEN.encode()).hexdigest()


def cookie_of(response: Any) -> Any:
    """The cookie that a response sets: name, value and attributes."""
    (cookie,) = SimpleCookie(response.headers["set-cookie"]).values()
    return cookie


def signed_in_headers(response: Any) -> dict[str, str]:
    """Headers of the page's requests after a response that signed in: both halves."""
    cookie = cookie_of(response)
    return {"Cookie": f"{cookie.key}={cookie.value}", "X-Mens-Sign-In": TOKEN, "Sec-Fetch-Site": "same-origin"}
