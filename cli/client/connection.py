"""The installation that the command line talks to, and the HTTP client for it.

``MENS_API_URL`` and ``MENS_API_KEY`` come first; otherwise the connection file that ``mens up`` writes into the home
folder, whose key is sent only to its own address. An operator's ``MENS_TENANT`` names the tenant to act for
(docs/tenants.md).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import httpx
import typer

from cli.client.api_errors import describe_error, error_of
from cli.client.json_errors import print_json_error, wants_json
from cli.client.start_command import start_command
from shared.errors import Code, InvalidRequest, MensError, NotFound, Unauthenticated, Unavailable
from shared.settings import Settings, read_settings

CONNECTION_NAME, DATABASE_NAME = "connection.json", "mens.db"
TIMEOUT_SECONDS = 60.0
PAGE = 100
LOOPBACK = ("127.0.0.1", "::1", "localhost")
UNKNOWN_HOST = "Name or service not known|name resolution|No address associated|nodename nor servname"
"""Words of the operating systems' resolvers."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Address of an installation's API and the API key for it."""

    url: str
    key: str

    def save(self, home: Path) -> None:
        """Write the connection file, readable by its owner only."""
        path = home / CONNECTION_NAME
        # Created with its mode before the key is written.
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    def is_usable(self) -> bool:
        """Return whether an API responds at the address and accepts the key."""
        try:
            with self.client(timeout=3.0) as client:
                return client.get("/v1/models").status_code == 200
        except httpx.HTTPError:
            return False

    def client(self, timeout: float = TIMEOUT_SECONDS, tenant: str | None = None) -> httpx.Client:
        """Return an HTTP client that sends the key.

        Args:
            tenant: the tenant to act for: None: ``MENS_TENANT``; empty: the key's own.
        """
        headers = {"Authorization": f"Bearer {self.key}"}
        if acted_for := os.environ.get("MENS_TENANT") if tenant is None else tenant:
            headers["X-Mens-Tenant"] = acted_for
        return httpx.Client(base_url=self.url, headers=headers, timeout=timeout)


def saved_connection(home: Path) -> Connection | None:
    """Return the connection that ``mens up`` saved in a home folder, if any."""
    path = home / CONNECTION_NAME
    return Connection(**json.loads(path.read_text())) if path.is_file() else None


def connect() -> Connection:
    """Return the connection of this command; end the command with advice if none is configured."""
    home = read_settings(Settings).home
    saved = saved_connection(home)
    address = os.environ.get("MENS_API_URL", "").strip()
    if address and not re.match("https?://[^/]", address, re.IGNORECASE):
        message = f"MENS_API_URL is {address!r}; it must begin with http:// or https://, as in http://127.0.0.1:8000."
        fail_with(InvalidRequest(Code.SETTINGS_INVALID, message, remedy="Correct it.", param="MENS_API_URL"))
    # OpenAI's clients call the address with /v1 the base URL, so that form is accepted too.
    url = address.rstrip("/").removesuffix("/v1").rstrip("/") or (saved.url if saved else None)
    if not url:
        fail_with(no_installation(home))
    # The saved key is a secret of its own installation: no other address may receive it.
    key = os.environ.get("MENS_API_KEY") or (saved.key if saved and saved.url == url else None)
    if not key:
        remedy = (
            "Set MENS_API_KEY: an admin creates one with `mens keys create NAME`. Create the first one on the "
            "installation's machine, with MENS_API_URL unset."
        )
        fail_with(Unauthenticated(Code.KEY_MISSING, f"MENS_API_KEY is not set, and {url} needs a key.", remedy=remedy))
    return Connection(url, key)


def call(method: str, path: str, tenant: str | None = None, **request: Any) -> Any:
    """Return the JSON body of the response to one API request; end the command with the API's error, its code and its
    remedy.

    ``tenant`` is as in :meth:`Connection.client`; the other arguments go into the request.
    """
    return _parse(send(method, path, tenant, **request))


def send(method: str, path: str, tenant: str | None = None, **request: Any) -> httpx.Response:
    """Return the response to one API request, whatever its status; end the command if nothing responds.

    ``tenant`` is as in :meth:`Connection.client`.
    """
    connection = connect()
    try:
        with connection.client(tenant=tenant) as client:
            return client.request(method, path, **request)
    except httpx.HTTPError as error:
        fail_with(unreachable(connection, error))


def find(path: str, tenant: str | None = None, absent: Collection[int] = (httpx.codes.NOT_FOUND,)) -> Any | None:
    """Return the JSON body of a GET, or None if the API responds with one of the statuses ``absent``; other errors end
    the command.
    """
    response = send("GET", path, tenant)
    return None if response.status_code in absent else _parse(response)


def find_all(path: str, tenant: str | None = None, **query: Any) -> list[dict[str, Any]]:
    """Return the items of a list: all items of a list without pages, otherwise those of the first page. ``tenant`` is
    as in :func:`call`.
    """
    items: list[dict[str, Any]] = call("GET", path, tenant, params=query)["data"]
    return items


def find_pages(path: str, **query: Any) -> Iterator[dict[str, Any]]:
    """Yield the items of all pages of a list; each next page is requested with the last item's id."""
    after: dict[str, Any] = {}
    while True:
        page = call("GET", path, params={"limit": PAGE, **query, **after})
        yield from page["data"]
        if not page["has_more"] or not page["data"]:
            return
        after = {"after": page["data"][-1]["id"]}


def unreachable(connection: Connection, error: httpx.HTTPError) -> Unavailable:
    """Return the error for an API that cannot be reached."""
    reason, url = str(error) or type(error).__name__, httpx.URL(connection.url)
    remedy = f"Check that it is running; on this machine {start_command()} starts it."
    # OpenSSL's words for an answer that is not TLS.
    if url.scheme == "https" and re.search("WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE", reason):
        reason, remedy = "it does not speak https", f"Set MENS_API_URL to {url.copy_with(scheme='http')}."
    elif re.search(UNKNOWN_HOST, reason):
        reason, remedy = (
            f"the host {url.host} is not known",
            "Check MENS_API_URL, or the names that this machine resolves.",
        )
    elif url.host not in LOOPBACK:
        remedy = "Check MENS_API_URL, and that the installation there is running."
    return Unavailable(Code.API_UNAVAILABLE, f"{connection.url} does not respond ({reason}).", remedy=remedy)


def no_installation(home: Path) -> NotFound:
    """Return the error of a command that needs an installation if none is configured, or this machine's is down."""
    if (home / DATABASE_NAME).exists():
        return NotFound(
            Code.INSTALLATION_NOT_FOUND,
            f"MENS_API_URL is not set, and the installation in {home} is not running.",
            remedy=f"Start it with {start_command()}; or set MENS_API_URL and MENS_API_KEY for another installation.",
        )
    return NotFound(
        Code.INSTALLATION_NOT_FOUND,
        f"MENS_API_URL is not set, and {home} contains no installation.",
        remedy=f"Start one with {start_command()}; or set MENS_HOME to an installation's home folder on this machine, or MENS_API_URL "
        "and MENS_API_KEY for one elsewhere.",
    )


def note(message: str) -> None:
    """Print a message on stderr, so that it stays out of the data on stdout."""
    typer.echo(message, err=True)


def fail(message: str, error: Mapping[str, Any] | None = None) -> NoReturn:
    """End the command with an error on stderr and exit code 1; with ``--json``, as JSON on stdout.

    Args:
        message: message for people.
        error: error for machines: at least code and message; default: ``REQUEST_INVALID`` with the message.
    """
    if wants_json():
        print_json_error(error or {"code": str(Code.REQUEST_INVALID), "message": message})
    else:
        typer.secho(f"error: {message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(1)


def fail_with(error: MensError) -> NoReturn:
    """End the command with one of our own errors."""
    fail(str(error), error.as_dict())


def fail_with_response(response: httpx.Response) -> NoReturn:
    """End the command with the error in the API's response."""
    error = error_of(response)
    fail(describe_error(error), error)


def _parse(response: httpx.Response) -> Any:
    if response.is_error:
        fail_with_response(response)
    return response.json()
