"""Secrets of keys on both databases: accepted, replaced, and never stored in plain text."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest

from shared.database.callers.key_secrets import AcceptedSecret
from shared.database.callers.keys import Keys
from shared.database.connection import Database
from shared.database.tenancy import KeyLimits, Role
from shared.errors import Code, Unauthenticated
from tests.support.builders import snapshot
from tests.support.clock import Clock
from tests.support.refusals import code


def test_secret_authenticates_and_is_not_stored(keys: Keys, database: Database) -> None:
    key, secret = keys.create("laptop")
    assert secret.startswith("mens-")
    assert len(secret) >= 40
    assert keys.authenticate(secret).id == key.id
    stored = repr(snapshot(database))
    assert secret not in stored
    assert secret.removeprefix("mens-") not in stored
    assert hashlib.sha256(secret.encode()).hexdigest() in stored
    assert secret not in key.model_dump_json()


@pytest.mark.parametrize("wrong", ["", "mens-", "mens-nonsense", "Ü\0", "' OR 1=1 --"])
def test_wrong_secret_is_refused(keys: Keys, wrong: str) -> None:
    keys.create("laptop")
    with pytest.raises(Unauthenticated) as caught:
        keys.authenticate(wrong)
    assert caught.value.code is Code.KEY_INVALID


def test_stored_hash_does_not_authenticate(keys: Keys) -> None:
    _, secret = keys.create("laptop")
    assert code(keys.authenticate, hashlib.sha256(secret.encode()).hexdigest()) == Code.KEY_INVALID


def test_rotated_key_has_both_secrets_until_the_overlap_ends(keys: Keys, clock: Clock) -> None:
    key, old = keys.create("bot", "acme", Role.VIEWER, KeyLimits(requests_per_minute=60))
    rotated, new = keys.rotate(key.id, 60)
    assert rotated == key.model_copy(update={"previous_secret_until": clock.now + timedelta(seconds=60)})
    assert new != old
    assert keys.accept(old) == AcceptedSecret(rotated, rotated.previous_secret_until)
    assert keys.accept(new) == AcceptedSecret(rotated, None)
    clock.advance(60)
    with pytest.raises(Unauthenticated) as ended:
        keys.authenticate(old)
    assert (ended.value.code, "was replaced" in ended.value.message) == (Code.KEY_EXPIRED, True)
    assert keys.authenticate(new) == rotated


def test_second_rotation_and_one_without_overlap_end_older_secrets(keys: Keys, clock: Clock) -> None:
    key, first = keys.create("bot")
    _, second = keys.rotate(key.id, 60)
    _, third = keys.rotate(key.id, 60)
    assert code(keys.authenticate, first) == Code.KEY_INVALID
    assert keys.authenticate(second) == keys.authenticate(third)
    rotated, fourth = keys.rotate(key.id, 0)
    assert rotated.previous_secret_until is None
    assert {code(keys.authenticate, secret) for secret in (first, second, third)} == {Code.KEY_INVALID}
    assert keys.authenticate(fourth) == rotated
