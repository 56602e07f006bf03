"""Access of ``mens keys`` to the keys: over the API, or in the database of this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn, Protocol

from cli.client.connection import call, fail, fail_with, no_installation
from cli.client.id_prefixes import KEYS
from cli.standalone.home import installed_database
from shared.database.tenancy import SHARED, KeyLimits, Role
from shared.errors import Code, Conflict, InvalidRequest, MensError, NotFound
from shared.settings import Settings, read_settings

KeyRecord = dict[str, Any]
"""A key as ``GET /v1/keys`` shows it."""
Limits = dict[str, int | None]
"""Fields of :class:`KeyLimits`; None means unlimited."""
Change = dict[str, Any]
"""Fields of ``PATCH /v1/keys/{id}``, times as strings."""


class KeyStore(Protocol):
    """API keys of one tenant; without a tenant, of all tenants that this store may read."""

    def create(self, name: str, role: Role, limits: Limits, expires_at: str | None) -> KeyRecord:
        """Create a key; only this response contains its ``secret``."""

    def all(self) -> list[KeyRecord]:
        """Return all keys, oldest first, including revoked ones."""

    def change(self, key_id: str, change: Change) -> KeyRecord:
        """Change the given fields."""

    def rotate(self, key_id: str, overlap_seconds: int) -> KeyRecord:
        """Give a key a new secret; only this response contains its ``secret``."""

    def revoke(self, key_id: str) -> KeyRecord:
        """Revoke a key: requests with it are refused from now on."""


def key_store(tenant: str | None) -> KeyStore:
    """Return the store for a command: the API if ``MENS_API_URL`` is set, otherwise the database of this machine."""
    return RemoteKeys(tenant) if os.environ.get("MENS_API_URL") else LocalKeys(tenant)


def find_id(keys: KeyStore, typed: str, revoked: bool = False) -> str:
    """Return the id of a key given by its id, by its name as long as it is not revoked, or by a part of its id.

    Ends the command if no key matches, or if several keys have the name.

    Args:
        revoked: whether a name without an active key may refer to a revoked one.
    """
    all_keys = keys.all()
    # Ids first: a key that is named like another key's id must not hide that one.
    if any(key["id"] == typed for key in all_keys):
        return typed
    former = [key for key in all_keys if key["name"] == typed and key["revoked_at"]]
    named = [key for key in all_keys if key["name"] == typed and not key["revoked_at"]] or (former if revoked else [])
    if not named and not former and (found_id := KEYS.among(typed, (str(key["id"]) for key in all_keys))) != typed:
        return found_id
    if not named:
        _refuse_absent(typed, is_revoked=bool(former))
    if len(named) > 1:
        candidates = [f"  {key['id']}  {key['role']} of {key['tenant']}" for key in named]
        verb = "had" if named == former else "have"
        ids = [str(key["id"]) for key in named]
        message = f"{len(named)} keys {verb} the name {typed!r}."
        error = Conflict(Code.ID_AMBIGUOUS, message, remedy="Give the id instead of the name.", details={"ids": ids})
        fail("\n".join([str(error), *candidates]), error.as_dict())
    return str(named[0]["id"])


def _refuse_absent(typed: str, *, is_revoked: bool) -> NoReturn:
    if is_revoked:
        remedy = "Create a new one: `mens keys create NAME`; use --tenant for another tenant's."
        fail_with(Conflict(Code.KEY_REVOKED, f"The key {typed!r} is permanently revoked.", remedy=remedy))
    remedy = "List them: `mens keys list`; use --tenant for another tenant's."
    fail_with(NotFound(Code.KEY_NOT_FOUND, f"The key {typed!r} does not exist.", remedy=remedy))


class RemoteKeys:
    """API keys over the API; the key in ``MENS_API_KEY`` decides what is allowed."""

    def __init__(self, tenant: str | None) -> None:
        self._tenant = tenant

    def create(self, name: str, role: Role, limits: Limits, expires_at: str | None) -> KeyRecord:
        # The tenant is only in the body: this key may create the tenant, and a header can name only an existing one.
        body = {"name": name, "role": role, "tenant": self._tenant, "expires_at": expires_at, **limits}
        key: KeyRecord = call("POST", "/v1/keys", tenant="", json=body)
        return key

    def all(self) -> list[KeyRecord]:
        keys: list[KeyRecord] = call("GET", "/v1/keys", tenant=self._tenant)["data"]
        return keys

    def change(self, key_id: str, change: Change) -> KeyRecord:
        key: KeyRecord = call("PATCH", f"/v1/keys/{key_id}", tenant=self._tenant, json=change)
        return key

    def rotate(self, key_id: str, overlap_seconds: int) -> KeyRecord:
        body = {"overlap_seconds": overlap_seconds}
        key: KeyRecord = call("POST", f"/v1/keys/{key_id}/rotate", tenant=self._tenant, json=body)
        return key

    def revoke(self, key_id: str) -> KeyRecord:
        key: KeyRecord = call("DELETE", f"/v1/keys/{key_id}", tenant=self._tenant)
        return key


@contextmanager
def _local_command() -> Iterator[None]:
    """Run a command on the database of this machine: the audit log names the command as the actor, and an error ends
    it.
    """
    from shared.database.audit.actors import AuditActor, acting  # slow to import

    try:
        with acting(AuditActor.of_command()):
            yield
    except MensError as error:
        fail_with(error)


class LocalKeys:
    """API keys in the database of this machine, which needs no key: this is how the first one is created."""

    def __init__(self, tenant: str | None) -> None:
        self._tenant = tenant
        settings = read_settings(Settings)
        database = installed_database(settings)
        if not database:
            fail_with(no_installation(settings.home))
        from shared.database.callers.keys import Keys  # slow to import

        self._keys = Keys(database)

    @_local_command()
    def create(self, name: str, role: Role, limits: Limits, expires_at: str | None) -> KeyRecord:
        ends = datetime.fromisoformat(expires_at) if expires_at else None
        key, secret = self._keys.create(name, self._tenant or SHARED, role, KeyLimits(**limits), ends)
        return {**key.model_dump(mode="json"), "secret": secret}

    @_local_command()
    def all(self) -> list[KeyRecord]:
        records = [key.model_dump(mode="json") for key in self._keys.all(self._tenant)]
        if not records and self._tenant not in (None, SHARED):
            message = f"The tenant {self._tenant!r} does not exist."
            raise NotFound(Code.TENANT_NOT_FOUND, message, remedy="List them: `mens keys list`.", param="tenant")
        return records

    @_local_command()
    def change(self, key_id: str, change: Change) -> KeyRecord:
        from shared.database.callers.key_records import KEY_NAME_PATTERN, KEY_NAME_RULE, KeyChange  # slow to import

        if not re.fullmatch(KEY_NAME_PATTERN, name := change.get("name", "-")):
            raise InvalidRequest(Code.NAME_INVALID, f"The name is {name!r}; it must be {KEY_NAME_RULE}.", param="name")
        return self._keys.change(key_id, KeyChange(**change), self._tenant).model_dump(mode="json")

    @_local_command()
    def rotate(self, key_id: str, overlap_seconds: int) -> KeyRecord:
        key, secret = self._keys.rotate(key_id, overlap_seconds, self._tenant)
        return {**key.model_dump(mode="json"), "secret": secret}

    @_local_command()
    def revoke(self, key_id: str) -> KeyRecord:
        return self._keys.revoke(key_id, self._tenant).model_dump(mode="json")
