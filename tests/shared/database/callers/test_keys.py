"""API keys on both databases: secrets, limits, tenants, revocation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError
from sqlalchemy import text

from shared.database.callers.key_records import KeyChange
from shared.database.callers.key_secrets import AcceptedSecret
from shared.database.callers.keys import Keys
from shared.database.change_counter import Changes
from shared.database.connection import Database
from shared.database.tenancy import SHARED, KeyLimits, Role
from shared.errors import Code, Conflict, NotFound
from tests.support.builders import at_once, snapshot
from tests.support.clock import Clock
from tests.support.refusals import code


def test_key_is_found_as_it_was_made(keys: Keys) -> None:
    limits = KeyLimits(requests_per_minute=60, concurrent_requests=4)
    key, secret = keys.create("bot", "acme", Role.TRAINER, limits)
    assert (key.tenant, key.role, key.requests_per_minute, key.concurrent_requests) == ("acme", Role.TRAINER, 60, 4)
    assert keys.authenticate(secret) == key
    assert keys.all() == [key]


def test_plain_key_is_an_admin_of_shared_without_limits(keys: Keys) -> None:
    key, _ = keys.create("laptop")
    assert (key.tenant, key.role, key.requests_per_minute, key.concurrent_requests) == (SHARED, Role.ADMIN, None, None)


def test_key_of_the_previous_release_is_an_admin_of_shared(keys: Keys, database: Database) -> None:
    with database.write() as session:
        columns = "id, name, secret_sha256, created_at"
        session.execute(text(f"INSERT INTO api_keys ({columns}) VALUES ('key-0', 'old', '{'0' * 64}', 1)"))
    [key] = keys.all()
    assert (key.tenant, key.role, key.requests_per_minute) == (SHARED, Role.ADMIN, None)


@pytest.mark.parametrize("field", ["requests_per_minute", "concurrent_requests"])
def test_limits_are_positive(field: str) -> None:
    for wrong in (0, -1):
        with pytest.raises(ValidationError):
            KeyLimits(**{field: wrong})


def test_limits_change_one_by_one(keys: Keys) -> None:
    key, secret = keys.create("bot", limits=KeyLimits(requests_per_minute=60))
    other, _ = keys.create("other", limits=KeyLimits(requests_per_minute=60))
    for limits, expected in (
        (KeyChange(concurrent_requests=4), (60, 4)),
        (KeyChange(requests_per_minute=None), (None, 4)),
        (KeyChange(), (None, 4)),
        (KeyChange(requests_per_minute=5, concurrent_requests=None), (5, None)),
    ):
        changed = keys.change(key.id, limits)
        assert (changed.requests_per_minute, changed.concurrent_requests) == expected
        assert keys.authenticate(secret) == changed
    assert keys.all()[1] == other


def test_limits_of_a_revoked_key_cannot_change(keys: Keys, database: Database) -> None:
    key, _ = keys.create("bot")
    keys.revoke(key.id)
    before = snapshot(database)
    assert code(keys.change, key.id, KeyChange(requests_per_minute=1)) == Code.KEY_REVOKED
    assert snapshot(database) == before


def test_name_of_an_unrevoked_key_is_taken_in_its_tenant(keys: Keys, database: Database) -> None:
    first, _ = keys.create("bot", "acme")
    before = snapshot(database)
    with pytest.raises(Conflict) as taken:
        keys.create("bot", "acme", Role.VIEWER)
    assert (taken.value.code, taken.value.param) == (Code.KEY_NAME_TAKEN, "name")
    assert taken.value.details == {"key_id": first.id}
    assert f"mens keys revoke {first.id}" in taken.value.remedy
    assert snapshot(database) == before
    keys.create("bot", "other")
    keys.create("Bot", "acme")
    keys.revoke(first.id)
    second, _ = keys.create("bot", "acme")
    assert code(keys.create, "bot", "acme") == Code.KEY_NAME_TAKEN
    assert second.id != first.id


def test_concurrent_creations_with_one_name_succeed_once(keys: Keys) -> None:
    def create(_: int) -> str:
        try:
            return keys.create("bot")[0].id
        except Conflict as error:
            return str(error.code)

    made = at_once(6, create)
    assert sorted(made)[:5] == ["KEY_NAME_TAKEN"] * 5
    assert [key.id for key in keys.all()] == sorted(made)[5:]


def test_keys_belong_to_a_tenant(keys: Keys, database: Database) -> None:
    mine, theirs = keys.create("one", "acme")[0], keys.create("two", "other")[0]
    assert keys.all("acme") == [mine]
    assert keys.all() == [mine, theirs]
    before = snapshot(database)
    with pytest.raises(NotFound) as foreign:
        keys.revoke(theirs.id, "acme")
    with pytest.raises(NotFound) as unknown:
        keys.revoke("key-none", "acme")
    assert str(foreign.value).replace(theirs.id, "key-none") == str(unknown.value)
    assert code(keys.change, theirs.id, KeyChange(requests_per_minute=1), "acme") == Code.KEY_NOT_FOUND
    assert snapshot(database) == before
    assert keys.revoke(mine.id, "acme").revoked_at
    assert keys.revoke(theirs.id).revoked_at, "without a tenant any key can be revoked"


def test_every_change_is_counted_once(keys: Keys, database: Database) -> None:
    changes = Changes(database)
    key, secret = keys.create("one")
    assert changes.count() == 1
    assert code(keys.create, "one") == Code.KEY_NAME_TAKEN
    assert changes.count() == 1
    for _ in range(2):
        keys.change(key.id, KeyChange(requests_per_minute=60))
        assert changes.count() == 2
    keys.revoke(key.id)
    assert changes.count() == 3
    keys.revoke(key.id)
    assert code(keys.authenticate, secret) == Code.KEY_INVALID
    assert changes.count() == 3


def test_revoked_key_is_refused_and_the_others_are_not(keys: Keys) -> None:
    (first, first_secret), (second, second_secret) = keys.create("one"), keys.create("two")
    revoked = keys.revoke(first.id)
    assert revoked.revoked_at is not None
    assert code(keys.authenticate, first_secret) == Code.KEY_INVALID
    assert keys.authenticate(second_secret).id == second.id
    assert {key.id: key.revoked_at is None for key in keys.all()} == {first.id: False, second.id: True}


def test_repeated_revocation_changes_nothing(keys: Keys) -> None:
    key, _ = keys.create("laptop")
    keys.revoke(key.id)
    [first] = keys.all()
    keys.revoke(key.id)
    assert keys.all() == [first]
    assert code(keys.revoke, "key-none") == Code.KEY_NOT_FOUND


# -- expiry, names, last use -------------------------------------------------------------------------------------------


def test_revocation_ends_both_secrets_and_revoked_keys_are_not_rotated(keys: Keys, database: Database) -> None:
    key, old = keys.create("bot", "acme")
    _, new = keys.rotate(key.id)
    assert code(keys.rotate, key.id, 60, "other") == Code.KEY_NOT_FOUND
    keys.revoke(key.id)
    assert {code(keys.authenticate, secret) for secret in (old, new)} == {Code.KEY_INVALID}
    before = snapshot(database)
    assert code(keys.rotate, key.id) == Code.KEY_REVOKED
    assert snapshot(database) == before


def test_key_expires_and_lives_on_with_a_later_expiry(keys: Keys, clock: Clock) -> None:
    ends = clock.now + timedelta(hours=1)
    key, secret = keys.create("bot", expires_at=ends)
    assert (key.expires_at, keys.accept(secret).until) == (ends, ends)
    clock.advance(3600)
    assert code(keys.authenticate, secret) == Code.KEY_EXPIRED
    keys.change(key.id, KeyChange(expires_at=clock.now + timedelta(seconds=1)))
    assert keys.authenticate(secret).id == key.id
    changed = keys.change(key.id, KeyChange(expires_at=None))
    clock.advance(1e6)
    assert keys.accept(secret) == AcceptedSecret(changed, None)


def test_expiry_in_the_past_is_refused(keys: Keys, clock: Clock) -> None:
    key, _ = keys.create("bot")
    assert code(lambda: keys.create("late", expires_at=clock.now)) == Code.KEY_EXPIRY_INVALID
    assert code(keys.change, key.id, KeyChange(expires_at=clock.now)) == Code.KEY_EXPIRY_INVALID
    assert keys.all() == [key]


def test_name_and_role_change(keys: Keys, database: Database) -> None:
    (key, secret), (other, _) = keys.create("bot", "acme"), keys.create("other", "acme")
    changed = keys.change(key.id, KeyChange(name="robot", role=Role.VIEWER))
    assert changed == keys.authenticate(secret) == key.model_copy(update={"name": "robot", "role": Role.VIEWER})
    before = snapshot(database)
    assert code(keys.change, key.id, KeyChange(name="other", role=Role.ADMIN)) == Code.KEY_NAME_TAKEN
    assert keys.change(key.id, KeyChange(name=None, role=None)) == changed
    assert keys.change(key.id, KeyChange(name="robot")) == changed, "its own name is not taken"
    assert snapshot(database) == before
    assert keys.get(other.id, "acme") == other


def test_concurrent_renames_to_one_name_succeed_once(keys: Keys) -> None:
    made = [keys.create(f"bot-{number}")[0] for number in range(4)]

    def rename(number: int) -> str:
        try:
            return keys.change(made[number].id, KeyChange(name="bot")).name
        except Conflict as error:
            return str(error.code)

    assert sorted(at_once(4, rename)) == ["KEY_NAME_TAKEN"] * 3 + ["bot"]


def test_last_use_never_decreases_and_is_not_a_counted_change(keys: Keys, database: Database) -> None:
    (key, secret), (unused, _) = keys.create("bot"), keys.create("unused")
    late, early = datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
    count = Changes(database).count()
    keys.record_use({key.id: late, "key-none": late})
    keys.record_use({key.id: early})
    assert keys.authenticate(secret).last_used_at == late
    assert keys.get(unused.id, SHARED).last_used_at is None
    assert Changes(database).count() == count
