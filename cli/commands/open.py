"""``mens open``: the web console in a browser, signed in with this command's key."""

from __future__ import annotations

import os
import sys
import webbrowser
from typing import Annotated

import httpx
import typer

from cli.client.connection import Connection, connect, fail, fail_with, fail_with_response, note, unreachable

SECONDS = 60


def open_console(
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open a browser, if this machine has a screen.")
    ] = True,
) -> None:
    """Print a link that opens the web console signed in; it works once, within a minute. If there is a screen, open it.

    Without a screen, open the link on your own machine; if the API is on another one, forward its port first: `ssh -L
    8000:127.0.0.1:8000 SERVER`.
    """
    connection = connect()
    try:
        ways = _ways(connection)
        if ways.status_code in (httpx.codes.NOT_FOUND, httpx.codes.UNAUTHORIZED):
            fail(f"{connection.url} serves no web console: MENS_CONSOLE is off there, or its release is older.")
        if ways.is_success and (refused := ways.json()["refused"]):
            fail(f"{refused['message']} {refused['remedy']} ({refused['code']})", refused)
        made = _new_code(connection)
    except httpx.HTTPError as error:
        fail_with(unreachable(connection, error))
    if made.is_error:
        fail_with_response(made)
    link = _link(connection, made)
    if browser and sys.stdout.isatty() and _has_screen() and webbrowser.open(link):
        note(f"opened in your browser; the link works once, within {SECONDS} s:")
    typer.echo(link)


def console_link(connection: Connection) -> str | None:
    """Return a link that opens the console signed in, once; None if this installation has no console."""
    try:
        made = _new_code(connection)
    except httpx.HTTPError:
        return None
    return _link(connection, made) if made.is_success else None


def _ways(connection: Connection) -> httpx.Response:
    with connection.client(tenant="") as client:
        return client.get("/v1/sign_in")


def _new_code(connection: Connection) -> httpx.Response:
    with connection.client(tenant="") as client:  # a sign-in belongs to the key; the page chooses the tenant
        return client.post("/v1/sign_in_codes")


def _link(connection: Connection, made: httpx.Response) -> str:
    return f"{connection.url}/#code={made.json()['code']}"


def _has_screen() -> bool:
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
