"""Which installation the command line talks to, and the HTTP client for it.

``MENS_API_URL`` and ``MENS_API_KEY`` win; else the connection file that ``mens up`` writes into the home folder, whose key
goes to its own address alone. An operator's ``MENS_TENANT`` names the tenant to act for (docs/tenants.md).
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import httpx
import typer

from cli.remedies import in_cli_words
from shared.settings import Settings, read_settings

CONNECTION_NAME = "connection.json"
TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Connection:
    """Address and key of an API."""

    url: str
    key: str

    def save(self, home: Path) -> None:
        """Write the connection file, readable by its owner alone."""
        path = home / CONNECTION_NAME
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    def answers(self) -> bool:
        """Whether an API answers there, and takes the key."""
        try:
            with self.client(timeout=3.0) as client:
                return client.get("/v1/models").status_code == 200
        except httpx.HTTPError:
            return False

    def client(self, timeout: float = TIMEOUT_SECONDS, tenant: str | None = None) -> httpx.Client:
        """An HTTP client that carries the key.

        Args:
            tenant: the one to act for: None for that of ``MENS_TENANT``, empty for the key's own.
        """
        headers = {"Authorization": f"Bearer {self.key}"}
        if acted_for := os.environ.get("MENS_TENANT") if tenant is None else tenant:
            headers["X-Mens-Tenant"] = acted_for
        return httpx.Client(base_url=self.url, headers=headers, timeout=timeout)


def saved_connection(home: Path) -> Connection | None:
    """The connection that ``mens up`` left, if there is one."""
    path = home / CONNECTION_NAME
    return Connection(**json.loads(path.read_text())) if path.is_file() else None


def connect() -> Connection:
    """The connection of this command; ends the command with advice when there is none."""
    saved = saved_connection(read_settings(Settings).home)
    url = _named_url() or (saved.url if saved else None)
    if not url:
        fail("no installation to talk to. Start one with `mens up`, or set MENS_API_URL and MENS_API_KEY.")
    key = os.environ.get("MENS_API_KEY") or (saved.key if saved and saved.url == url else None)  # theirs alone
    if not key:
        fail(
            f"there is no key for {url}. Set MENS_API_KEY: an admin makes one with `mens keys create NAME`, "
            "and the first one is made where the installation runs, with MENS_API_URL unset."
        )
    return Connection(url, key)


def _named_url() -> str:
    """What ``MENS_API_URL`` names, empty when it is not set; with ``/v1`` it is what OpenAI's clients call the base URL."""
    given = os.environ.get("MENS_API_URL", "").strip()
    if given and not re.match("https?://[^/]", given, re.IGNORECASE):
        fail(f"MENS_API_URL is {given!r}; it has to begin with http:// or https://, as in http://127.0.0.1:8000")
    return given.rstrip("/").removesuffix("/v1").rstrip("/")


def call(method: str, path: str, tenant: str | None = None, **request: Any) -> Any:
    """One API call; ends the command with the API's own error, its code and its remedy.

    ``tenant`` is as in :meth:`Connection.client`; the rest goes into the request.
    """
    return _content(_answer(method, path, tenant, **request))


def find(path: str, tenant: str | None = None) -> Any | None:
    """What is at a path, or None when nothing is there; other errors end the command."""
    response = _answer("GET", path, tenant)
    return None if response.status_code == httpx.codes.NOT_FOUND else _content(response)


def find_all(path: str, tenant: str | None = None, **query: Any) -> list[dict[str, Any]]:
    """The things of a list: of one without pages all, of others the first page. ``tenant`` is as in :func:`call`."""
    things: list[dict[str, Any]] = call("GET", path, tenant, params=query)["data"]
    return things


def no_answer(connection: Connection, error: httpx.HTTPError) -> str:
    """What to say when the API cannot be reached."""
    return f"{connection.url} does not answer ({str(error) or type(error).__name__}). Is `mens up` running?"


def describe_error(response: httpx.Response) -> str:
    """The API's error as lines for a person: code, what happened and what to do, then each bad line of a file."""
    try:
        error = response.json()["error"]
    except (ValueError, KeyError):
        return f"{response.status_code}: {response.text[:300]}"
    ours = error.get("mens", {})
    remedy = ours.get("remedy", "")
    lines = [f"{error['code']}: {error['message'].removesuffix(remedy)}{in_cli_words(remedy)}"]
    for fault in ours.get("details", {}).get("errors", []):
        where = f"line {fault['line']}" if "line" in fault else fault.get("param", "")
        lines.append(f"  {where}: {fault['reason']}")
    return "\n".join(lines).replace("X-Mens-Tenant", "MENS_TENANT")


def note(message: str) -> None:
    """Tell something on stderr, where it is in the way of no program."""
    typer.echo(message, err=True)


def fail(message: str) -> NoReturn:
    """End the command with an error on stderr and exit code 1."""
    typer.secho(f"error: {message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(1)


def _answer(method: str, path: str, tenant: str | None = None, **request: Any) -> httpx.Response:
    connection = connect()
    try:
        with connection.client(tenant=tenant) as client:
            return client.request(method, path, **request)
    except httpx.HTTPError as error:
        fail(no_answer(connection, error))


def _content(response: httpx.Response) -> Any:
    if response.is_error:
        fail(describe_error(response))
    return response.json()
