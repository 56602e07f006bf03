"""How browsers reach the API: by HTTPS, or by plain HTTP on their own machine; otherwise a sign-in is refused.

A setting says whether they use HTTPS, because behind a proxy with TLS the API's own connection is plain HTTP.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from shared.errors import Code, Forbidden

TWO_WAYS_OUT = (
    "Put a proxy with TLS in front of the API and set MENS_PUBLIC_URL to its https:// address, or reach the API from "
    "your "
    "own machine: `ssh -L 8000:127.0.0.1:8000 SERVER`, then open http://127.0.0.1:8000/."
)


def is_secure(public_url: str) -> bool:
    """Return whether browsers use HTTPS."""
    return public_url.startswith("https://")


def check_transport(public_url: str, headers: Headers) -> None:
    """Refuse a sign-in if others in the network could read both halves.

    Args:
        public_url: address by which browsers reach the API, from the settings; empty: they reach it only on their own
            machine.
        headers: the request's headers.

    Raises:
        Forbidden: ``SIGN_IN_INSECURE``.
    """
    if is_secure(public_url):
        return
    # Behind a proxy that replaces Host, Origin still has the address in the browser.
    addresses = [f"//{headers.get('host', '')}", public_url, headers.get("origin", "")]
    if not all(is_loopback(address) for address in addresses if address):
        raise Forbidden(
            Code.SIGN_IN_INSECURE,
            "Sign-ins over plain HTTP are refused, except on the browser's own machine, because others on the "
            "network could read them.",
            remedy=TWO_WAYS_OUT,
        )


def check_same_origin(headers: Headers) -> None:
    """Refuse a request that another site's page has caused, if the browser reports this.

    Raises:
        Forbidden: ``SIGN_IN_CROSS_SITE``.
    """
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise Forbidden(
            Code.SIGN_IN_CROSS_SITE,
            "This request was caused by a page at a different address.",
            remedy=(
                "Signed-in requests are for the console's own page; other programs send `Authorization: Bearer KEY`."
            ),
        )


def is_loopback(address: str) -> bool:
    """Return whether an address with ``//`` leads to the caller's own machine."""
    try:
        host = urlsplit(address).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def page_origin(public_url: str, headers: Headers) -> str:
    """Return the origin of the console in the browser, for a request that has passed :func:`check_transport`."""
    if public_url:
        return public_url.rstrip("/")
    # Behind a proxy that replaces Host, Origin still has the address in the browser.
    address = headers.get("origin") or f"http://{headers.get('host', '')}"
    return f"http://{urlsplit(address).netloc.rpartition('@')[2]}"
