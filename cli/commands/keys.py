"""``mens keys``: creates, lists, limits and revokes API keys, over the API or in the database of this machine.

Over the API where ``MENS_API_URL`` is set. Both ways show a key as the API does, and end the command with the error when
something cannot be done.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Protocol

import typer

from cli.client.connection import call, fail, note
from cli.client.json_errors import Json
from cli.output import print_table
from cli.standalone.home import OWN_KEY, installed_database
from shared.database.tenancy import (
    LARGEST_LIMIT,
    MOST_TOKENS,
    SHARED,
    TENANT_PATTERN,
    TENANT_RULE,
    KeyLimits,
    Role,
    describe_rights,
)
from shared.errors import Code, MensError, NotFound
from shared.settings import Settings, read_settings

NO_LIMIT = "none"
app = typer.Typer(
    no_args_is_help=True,
    help="API keys: create, list, limit, revoke.\n\n"
    "With MENS_API_URL set, they are those of that API, and MENS_API_KEY has to be an admin's. Without it, they are those in "
    "the database of the installation on this machine (MENS_HOME), and no key is needed: that is how the first one is made.",
)


def check_tenant(name: str | None) -> str | None:
    """Callback of a tenant's option: refuses what is no tenant's name, and says what one is."""
    if name is not None and not re.fullmatch(TENANT_PATTERN, name):
        raise typer.BadParameter(f"{name!r} is not {TENANT_RULE}.")
    return name


def check_role(name: str) -> str:
    """Callback of a role's option: refuses what is no role, and lists the roles."""
    if name not in list(Role):
        raise typer.BadParameter(f"{name!r} is no role; it is one of {', '.join(Role)}.")
    return name


Tenant = Annotated[
    str | None,
    typer.Option(
        envvar="MENS_TENANT",
        callback=check_tenant,
        help="Only this tenant's; left out: over the API those of MENS_API_KEY's tenant, else keys of every tenant.",
    ),
]
KeyName = Annotated[str, typer.Argument(metavar="KEY", help="Its id, or its name as long as it is not revoked.")]


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Who or what uses the key, e.g. alice or ci.")],
    tenant: Annotated[
        str | None,
        typer.Option(
            envvar="MENS_TENANT",
            callback=check_tenant,
            help="The tenant that it belongs to; a tenant is made with its first key. "
            "Left out: over the API that of MENS_API_KEY, else `shared`.",
        ),
    ] = None,
    role: Annotated[
        str,
        typer.Option(
            metavar="|".join(Role),
            callback=check_role,
            help="What it may do; an admin of `shared` is an operator, who may act in every tenant.",
        ),
    ] = str(Role.ADMIN),
    rpm: Annotated[
        str | None, typer.Option(metavar="N|none", help="Requests to models a minute; unlimited when left out.")
    ] = None,
    concurrent: Annotated[
        str | None, typer.Option(metavar="N|none", help="Requests to models at once; unlimited when left out.")
    ] = None,
    tpm: Annotated[
        str | None,
        typer.Option(metavar="N|none", help="Tokens of prompts and answers a minute; unlimited when left out."),
    ] = None,
) -> None:
    """Make a key. Its secret is printed once and stored only as a hash.

    An admin of `shared` is an operator, who may do everything in every tenant.
    """
    limits = {"requests_per_minute": _limit("--rpm", rpm), "concurrent_requests": _limit("--concurrent", concurrent)}
    limits["tokens_per_minute"] = _limit("--tpm", tpm, MOST_TOKENS)
    key = key_store(tenant).create(name, Role(role), limits)
    rights = describe_rights(Role(key["role"]), key["tenant"])
    typer.echo(f"{key['id']} for {key['name']}, {rights}; the secret is shown this once:", err=True)
    typer.echo(key["secret"])


@app.command("list")
def list_keys(tenant: Tenant = None, as_json: Json = False) -> None:
    """Show keys, without their secrets."""
    found = key_store(tenant).all()
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    rows = [
        (
            key["id"],
            key["name"],
            key["tenant"],
            key["role"],
            str(key["requests_per_minute"] or ""),
            str(key["concurrent_requests"] or ""),
            str(key.get("tokens_per_minute") or ""),
            key["created_at"][:16].replace("T", " "),
            "yes" if key["revoked_at"] else "",
        )
        for key in found
    ]
    print_table(("id", "name", "tenant", "role", "rpm", "concurrent", "tpm", "created", "revoked"), rows)


@app.command("limit")
def limit(
    name: KeyName,
    rpm: Annotated[
        str | None, typer.Option(metavar="N|none", help="Requests to models a minute; left out: unchanged.")
    ] = None,
    concurrent: Annotated[
        str | None, typer.Option(metavar="N|none", help="Requests to models at once; left out: unchanged.")
    ] = None,
    tpm: Annotated[
        str | None, typer.Option(metavar="N|none", help="Tokens of prompts and answers a minute; left out: unchanged.")
    ] = None,
    tenant: Tenant = None,
) -> None:
    """Change the limits of a key, from its next request on.

    What is left out stays as it is, and `none` lifts a limit: `mens keys limit bot --rpm 120 --concurrent none`.
    """
    given = {
        "requests_per_minute": ("--rpm", rpm, LARGEST_LIMIT),
        "concurrent_requests": ("--concurrent", concurrent, LARGEST_LIMIT),
        "tokens_per_minute": ("--tpm", tpm, MOST_TOKENS),
    }
    limits = {field: _limit(option, text, most) for field, (option, text, most) in given.items() if text is not None}
    if not limits:
        raise typer.BadParameter("Give --rpm N, --concurrent N, --tpm N, or several; `none` is no limit.")
    keys = key_store(tenant)
    key = keys.limit(find_id(keys, name), limits)
    per_minute, at_once = key["requests_per_minute"] or "any number of", key["concurrent_requests"] or "any number"
    tokens = f", {key['tokens_per_minute']} tokens a minute" if key.get("tokens_per_minute") else ""
    typer.echo(f"{_describe(key)}: {per_minute} requests to models a minute, {at_once} at once{tokens}")


@app.command("revoke")
def revoke(name: KeyName, tenant: Tenant = None) -> None:
    """Revoke a key; requests that carry it are refused from now on."""
    keys = key_store(tenant)
    key = keys.revoke(find_id(keys, name))
    typer.echo(f"{_describe(key)} is revoked")
    if re.fullmatch(rf"{OWN_KEY}(-\d+)?", key["name"]):
        note("note: this was the installation's own key; restart `mens up` to make a new one")


def _limit(option: str, text: str | None, largest: int = LARGEST_LIMIT) -> int | None:
    if text is None or text.lower() == NO_LIMIT:
        return None
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= largest):
        raise typer.BadParameter(f"{text!r} is not 1 to {largest}, or {NO_LIMIT}.", param_hint=option)
    return int(text)


def _describe(key: KeyRecord) -> str:
    return f"{key['id']} ({key['name']} of {key['tenant']})"


KeyRecord = dict[str, Any]
"""A key as ``GET /v1/keys`` shows it."""
Limits = dict[str, int | None]
"""Fields of :class:`KeyLimits`; None is no limit."""


class KeyStore(Protocol):
    """API keys of one tenant; without one, of all tenants that this store may read."""

    def create(self, name: str, role: Role, limits: Limits) -> KeyRecord:
        """Make a key; only this response holds its ``secret``."""

    def all(self) -> list[KeyRecord]:
        """All keys, oldest first; revoked ones too."""

    def limit(self, key_id: str, limits: Limits) -> KeyRecord:
        """Change the limits that are given."""

    def revoke(self, key_id: str) -> KeyRecord:
        """Revoke a key: requests with it are refused from now on."""


def key_store(tenant: str | None) -> KeyStore:
    """The store that a command works on: the API when ``MENS_API_URL`` is set, else the database of this machine."""
    return RemoteKeys(tenant) if os.environ.get("MENS_API_URL") else LocalKeys(tenant)


def find_id(keys: KeyStore, given: str, revoked: bool = False) -> str:
    """Id of a key that is given by its id, or by its name as long as it is not revoked.

    Ends the command when there is none, and when several keys have the name.

    Args:
        revoked: whether a name that no key has now stands for the one that had it.
    """
    found = keys.all()
    # Ids first: a key that is named like another key's id must not hide that one.
    if any(key["id"] == given for key in found):
        return given
    former = [key for key in found if key["name"] == given and key["revoked_at"]]
    named = [key for key in found if key["name"] == given and not key["revoked_at"]] or (former if revoked else [])
    if not named:
        message = f"The key {given!r} is revoked, for good." if former else f"There is no key {given!r}."
        remedy = "List them: `mens keys list`; --tenant names another tenant."
        fail(str(NotFound(Code.KEY_NOT_FOUND, message, remedy=remedy)))
    if len(named) > 1:
        candidates = [f"  {key['id']}  {key['role']} of {key['tenant']}" for key in named]
        verb = "had" if named == former else "have"
        fail("\n".join([f"{len(named)} keys {verb} the name {given!r}; give the id of one:", *candidates]))
    return str(named[0]["id"])


class RemoteKeys:
    """API keys over the API; the key in ``MENS_API_KEY`` decides what is allowed."""

    def __init__(self, tenant: str | None) -> None:
        self._tenant = tenant

    def create(self, name: str, role: Role, limits: Limits) -> KeyRecord:
        # The tenant stands in the body only: it may be made with this key, and then no header can name it yet.
        body = {"name": name, "role": role, "tenant": self._tenant, **limits}
        key: KeyRecord = call("POST", "/v1/keys", tenant="", json=body)
        return key

    def all(self) -> list[KeyRecord]:
        keys: list[KeyRecord] = call("GET", "/v1/keys", tenant=self._tenant)["data"]
        return keys

    def limit(self, key_id: str, limits: Limits) -> KeyRecord:
        key: KeyRecord = call("PATCH", f"/v1/keys/{key_id}", tenant=self._tenant, json=limits)
        return key

    def revoke(self, key_id: str) -> KeyRecord:
        key: KeyRecord = call("DELETE", f"/v1/keys/{key_id}", tenant=self._tenant)
        return key


@contextmanager
def _ending_on_error() -> Iterator[None]:
    try:
        yield
    except MensError as error:
        fail(str(error))


class LocalKeys:
    """API keys in the database of this machine, where no key is needed: the first one has to come from somewhere."""

    def __init__(self, tenant: str | None) -> None:
        self._tenant = tenant
        settings = read_settings(Settings)
        database = installed_database(settings)
        if not database:
            fail(
                f"MENS_API_URL is not set, and there is no installation in {settings.home}. "
                "Set MENS_API_URL and MENS_API_KEY to those of an installation; or, where it runs, MENS_HOME."
            )
        from shared.database.keys import Keys  # slow to import

        self._keys = Keys(database)

    @_ending_on_error()
    def create(self, name: str, role: Role, limits: Limits) -> KeyRecord:
        key, secret = self._keys.create(name, self._tenant or SHARED, role, KeyLimits(**limits))
        return {**key.model_dump(mode="json"), "secret": secret}

    @_ending_on_error()
    def all(self) -> list[KeyRecord]:
        return [key.model_dump(mode="json") for key in self._keys.all(self._tenant)]

    @_ending_on_error()
    def limit(self, key_id: str, limits: Limits) -> KeyRecord:
        return self._keys.limit(key_id, KeyLimits(**limits), self._tenant).model_dump(mode="json")

    @_ending_on_error()
    def revoke(self, key_id: str) -> KeyRecord:
        return self._keys.revoke(key_id, self._tenant).model_dump(mode="json")
