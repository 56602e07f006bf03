"""Sign in as the console's page does, without a browser, and a person who signs in."""

from __future__ import annotations

import hashlib
from http.cookies import SimpleCookie
from typing import Any

from shared.database.callers.people import Person
from shared.database.tenancy import Role

ALICE = Person("https://id.example", "00u1", "alice@acme.example", "acme", Role.TRAINER)


def challenge_of(token: str) -> str:
    """Return the digest of its token, which a page sends when it signs in."""
    return hashlib.sha256(token.encode()).hexdigest()


TOKEN = "t" * 43
CHALLENGE = challenge_of(TOKEN)


def cookie_of(response: Any) -> Any:
    """Return the cookie that a response sets: name, value and attributes."""
    (cookie,) = SimpleCookie(response.headers["set-cookie"]).values()
    return cookie


def signed_in_headers(response: Any) -> dict[str, str]:
    """Return the headers of the page's requests after a sign-in: both halves."""
    cookie = cookie_of(response)
    return {"Cookie": f"{cookie.key}={cookie.value}", "X-Mens-Sign-In": TOKEN, "Sec-Fetch-Site": "same-origin"}
