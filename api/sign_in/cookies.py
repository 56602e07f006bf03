"""The cookie that is one half of a sign-in, and the request header with the other."""

from __future__ import annotations

import hashlib
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import Scope

from api.settings import ApiSettings
from api.sign_in.transport import check_same_origin, is_secure
from shared.database.callers.sign_ins import LONGEST_AGE, SignInHalves

SIGN_IN_HEADER = "X-Mens-Sign-In"
"""Because this header is a custom one, a browser sends a preflight before any request from another origin, and the
preflight is refused.
"""
_RAW_HEADER = SIGN_IN_HEADER.lower().encode()


def cookie_name(settings: ApiSettings) -> str:
    """Return the cookie's name. Each installation of a machine has a cookie name of its own, because cookies ignore
    ports.
    """
    address = urlsplit(settings.database_url)
    where = (
        f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path}"  # without the password, which changes
    )
    name = f"mens-{hashlib.sha256(where.encode()).hexdigest()[:8]}"
    # With this prefix a browser accepts the cookie only from this host and over HTTPS.
    return f"__Host-{name}" if is_secure(settings.public_url) else name


def halves_of(settings: ApiSettings, scope: Scope) -> SignInHalves | None:
    """Return both halves of a sign-in that a request carries; None if one is missing."""
    if not settings.console or not any(name == _RAW_HEADER for name, _ in scope["headers"]):
        return None
    headers = Headers(scope=scope)
    cookie = cookie_parser(headers.get("cookie", "")).get(cookie_name(settings), "")
    if not cookie or not (token := headers[SIGN_IN_HEADER]):
        return None
    check_same_origin(headers)
    return SignInHalves(cookie, token)


def set_cookie(settings: ApiSettings, response: Response, value: str) -> None:
    """Let a response set the cookie."""
    _set(settings, response, value, round(LONGEST_AGE.total_seconds()))


def clear_cookie(settings: ApiSettings, response: Response) -> None:
    """Let a response delete the cookie."""
    _set(settings, response, "", 0)


def _set(settings: ApiSettings, response: Response, value: str, seconds: int) -> None:
    response.set_cookie(
        cookie_name(settings),
        value,
        max_age=seconds,
        path="/",
        secure=is_secure(settings.public_url),
        httponly=True,
        samesite="strict",
    )
