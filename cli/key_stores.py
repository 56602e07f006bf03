"""Where ``mens keys`` finds the keys: at the API that ``MENS_API_URL`` names, else in the database of this machine.

Both show a key as the API does, and end the command with the error when something cannot be done.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from cli.connection import call, fail
from cli.home import installed_database
from shared.errors import Code, MensError, NotFound
from shared.settings import Settings, read_settings
from shared.tenancy import SHARED, KeyLimits, Role

if TYPE_CHECKING:
    from shared.keys import Keys

Facts = dict[str, Any]
"""A key as ``GET /v1/keys`` shows it."""
Limits = dict[str, int | None]
"""Fields of :class:`KeyLimits`; None is no limit."""


class KeyStore(Protocol):
    """Keys of one tenant; where none is named, of all those that the way there lets one see."""

    def create(self, name: str, role: Role, limits: Limits) -> Facts:
        """Make a key; its ``secret`` is shown this once."""

    def all(self) -> list[Facts]:
        """Oldest first; revoked ones too."""

    def limit(self, key_id: str, limits: Limits) -> Facts:
        """Change the limits that are named."""

    def revoke(self, key_id: str) -> Facts:
        """Refuse a key from now on."""


def key_store(tenant: str | None) -> KeyStore:
    """The keys that a command works on: over the API when ``MENS_API_URL`` is set, else those of this machine."""
    return RemoteKeys(tenant) if os.environ.get("MENS_API_URL") else LocalKeys(tenant)


def find_id(keys: KeyStore, given: str, revoked: bool = False) -> str:
    """Id of the key that a person names: by its id, or by its name as long as it is not revoked.

    Ends the command when there is none, and when several keys have the name.

    Args:
        revoked: whether a name that no key has now stands for the one that had it.
    """
    found = keys.all()
    if any(key["id"] == given for key in found):  # first, so that nobody hides a key by calling another like its id
        return given
    had = [key for key in found if key["name"] == given and key["revoked_at"]]
    named = [key for key in found if key["name"] == given and not key["revoked_at"]] or (had if revoked else [])
    if not named:
        message = f"The key {given!r} is revoked, for good." if had else f"There is no key {given!r}."
        remedy = "List them: `mens keys list`; --tenant names another tenant."
        fail(str(NotFound(Code.KEY_NOT_FOUND, message, remedy=remedy)))
    if len(named) > 1:
        candidates = [f"  {key['id']}  {key['role']} of {key['tenant']}" for key in named]
        verb = "had" if named == had else "have"
        fail("\n".join([f"{len(named)} keys {verb} the name {given!r}; say which by its id:", *candidates]))
    return str(named[0]["id"])


class RemoteKeys:
    """Over the API, which says what the key of the environment may do."""

    def __init__(self, tenant: str | None) -> None:
        self._tenant = tenant

    def create(self, name: str, role: Role, limits: Limits) -> Facts:
        # The tenant is in the body alone: nobody can act for one that comes to be with this key.
        body = {"name": name, "role": role, "tenant": self._tenant, **limits}
        key: Facts = call("POST", "/v1/keys", tenant="", json=body)
        return key

    def all(self) -> list[Facts]:
        keys: list[Facts] = call("GET", "/v1/keys", tenant=self._tenant)["data"]
        return keys

    def limit(self, key_id: str, limits: Limits) -> Facts:
        key: Facts = call("PATCH", f"/v1/keys/{key_id}", tenant=self._tenant, json=limits)
        return key

    def revoke(self, key_id: str) -> Facts:
        key: Facts = call("DELETE", f"/v1/keys/{key_id}", tenant=self._tenant)
        return key


@contextmanager
def _errors_told() -> Iterator[None]:
    try:
        yield
    except MensError as error:
        fail(str(error))


class LocalKeys:
    """In the database, where nobody is asked for a key: the first one must come from somewhere."""

    def __init__(self, tenant: str | None) -> None:
        self._tenant = tenant
        self._keys = _keys_of_this_machine()

    @_errors_told()
    def create(self, name: str, role: Role, limits: Limits) -> Facts:
        key, secret = self._keys.create(name, self._tenant or SHARED, role, KeyLimits(**limits))
        return {**key.model_dump(mode="json"), "secret": secret}

    @_errors_told()
    def all(self) -> list[Facts]:
        return [key.model_dump(mode="json") for key in self._keys.all(self._tenant)]

    @_errors_told()
    def limit(self, key_id: str, limits: Limits) -> Facts:
        return self._keys.limit(key_id, KeyLimits(**limits), self._tenant).model_dump(mode="json")

    @_errors_told()
    def revoke(self, key_id: str) -> Facts:
        return self._keys.revoke(key_id, self._tenant).model_dump(mode="json")


def _keys_of_this_machine() -> Keys:
    settings = read_settings(Settings)
    database = installed_database(settings)
    if not database:
        fail(
            f"MENS_API_URL is not set, and there is no installation in {settings.home}. "
            "Set MENS_API_URL and MENS_API_KEY to those of an installation; or, where it runs, MENS_HOME."
        )
    from shared.keys import Keys  # slow to import

    return Keys(database)
