"""Sign-ins on both databases: two halves, ends, codes that work once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event, text

from shared.database.callers import sign_ins as sign_ins_module
from shared.database.callers.key_records import Key, KeyChange
from shared.database.callers.keys import Keys
from shared.database.callers.sign_ins import MOST_OF_A_KEY, PENDING_LIFE, PendingSignIn, SignIn, SignInHalves, SignIns
from shared.database.change_counter import Changes
from shared.database.connection import Database
from shared.database.tenancy import Role
from shared.errors import Code, MensError
from tests.support.builders import at_once, snapshot
from tests.support.clock import Clock
from tests.support.refusals import code
from tests.support.sign_ins import ALICE, TOKEN, challenge_of

HOUR = 3600


@pytest.fixture
def created(keys: Keys) -> tuple[Key, str]:
    return keys.create("alice", "acme", Role.TRAINER)


@pytest.fixture
def key(created: tuple[Key, str]) -> Key:
    return created[0]


@pytest.fixture
def key_secret(created: tuple[Key, str]) -> str:
    return created[1]


def signed_in(sign_ins: SignIns, secret: str, token: str = TOKEN) -> tuple[SignIn, SignInHalves]:
    made, cookie = sign_ins.create(secret, challenge_of(token))
    return made, SignInHalves(cookie, token)


def test_both_halves_are_the_key_and_neither_is_stored(
    sign_ins: SignIns, key: Key, key_secret: str, database: Database
) -> None:
    made, halves = signed_in(sign_ins, key_secret)
    accepted = sign_ins.accept(halves)
    assert (accepted.key, accepted.sign_in_id) == (key, made.id)
    assert sign_ins.get(halves) == made
    stored = repr(snapshot(database))
    assert made.id in stored
    assert halves.cookie not in stored
    assert halves.token not in stored


def test_neither_half_is_accepted_alone_or_with_another_one(sign_ins: SignIns, key_secret: str) -> None:
    _, halves = signed_in(sign_ins, key_secret)
    _, other = signed_in(sign_ins, key_secret, "u" * 43)
    cookie, token = halves
    hashes = SignInHalves(challenge_of(cookie), challenge_of(token))
    for wrong in ((cookie, ""), ("", token), (cookie, other.token), (other.cookie, token), (token, cookie), hashes):
        assert code(sign_ins.accept, SignInHalves(*wrong)) == Code.SIGN_IN_ENDED


def test_sign_in_ends_when_it_is_idle_or_old(sign_ins: SignIns, key_secret: str, clock: Clock) -> None:
    made, halves = signed_in(sign_ins, key_secret)
    assert sign_ins.accept(halves).until == clock.now + timedelta(hours=8)
    for _ in range(3):
        clock.advance(7.9 * HOUR)
        sign_ins.accept(halves)
        sign_ins.record_use({made.id: clock.now})
    assert sign_ins.accept(halves).until == made.created_at + timedelta(hours=24)
    clock.advance(0.4 * HOUR)
    assert code(sign_ins.accept, halves) == Code.SIGN_IN_ENDED
    assert sign_ins.list("acme") == []

    _, idle = signed_in(sign_ins, key_secret)
    clock.advance(8 * HOUR)
    assert code(sign_ins.accept, idle) == Code.SIGN_IN_ENDED
    assert sign_ins.list("acme") == []


def test_sign_in_ends_with_its_key(sign_ins: SignIns, key: Key, key_secret: str, keys: Keys, clock: Clock) -> None:
    _, halves = signed_in(sign_ins, key_secret)
    keys.change(key.id, KeyChange(role=Role.VIEWER, expires_at=clock.now + timedelta(minutes=1)))
    accepted = sign_ins.accept(halves)
    assert (accepted.key.role, accepted.until) == (Role.VIEWER, clock.now + timedelta(minutes=1))
    clock.advance(60)
    assert code(sign_ins.accept, halves) == Code.SIGN_IN_ENDED
    keys.change(key.id, KeyChange(expires_at=None))
    assert sign_ins.accept(halves).key.id == key.id
    keys.revoke(key.id)
    assert code(sign_ins.accept, halves) == Code.SIGN_IN_ENDED
    assert sign_ins.list("acme") == []


def test_sign_ins_end_with_the_secret_that_made_them(
    sign_ins: SignIns, key: Key, key_secret: str, keys: Keys, clock: Clock
) -> None:
    _, halves = signed_in(sign_ins, key_secret)
    keys.rotate(key.id, overlap_seconds=HOUR)
    assert sign_ins.accept(halves).until == clock.now + timedelta(hours=1)
    _, later = signed_in(sign_ins, key_secret)
    assert sign_ins.accept(later).until == clock.now + timedelta(hours=1)
    keys.rotate(key.id, overlap_seconds=0)
    for ended in (halves, later):
        assert code(sign_ins.accept, ended) == Code.SIGN_IN_ENDED


def test_replaced_secret_signs_in_no_more(sign_ins: SignIns, key: Key, key_secret: str, keys: Keys) -> None:
    """Also for a request that was let in before: it would have been valid for 24 h."""
    _, secret = keys.rotate(key.id, overlap_seconds=0)
    assert code(sign_ins.create, key_secret, challenge_of(TOKEN)) == Code.KEY_INVALID
    assert code(sign_ins.create_code, key_secret) == Code.KEY_INVALID
    sign_ins.accept(signed_in(sign_ins, secret)[1])
    keys.revoke(key.id)
    assert code(sign_ins.create, secret, challenge_of(TOKEN)) == Code.KEY_INVALID


def test_ended_sign_in_is_refused_and_the_others_are_not(
    sign_ins: SignIns, key_secret: str, database: Database
) -> None:
    (made, halves), (other, others) = signed_in(sign_ins, key_secret), signed_in(sign_ins, key_secret)
    assert code(sign_ins.end, made.id, "other") == Code.SIGN_IN_NOT_FOUND
    count = Changes(database).count()
    assert sign_ins.end(made.id, "acme") == made
    assert Changes(database).count() == count + 1
    assert code(sign_ins.end, made.id, "acme") == Code.SIGN_IN_NOT_FOUND
    assert code(sign_ins.accept, halves) == Code.SIGN_IN_ENDED
    assert sign_ins.accept(others).sign_in_id == other.id


def test_list_is_of_the_tenant_or_of_one_key(sign_ins: SignIns, key: Key, key_secret: str, keys: Keys) -> None:
    bob, stranger = keys.create("bob", "acme")[1], keys.create("eve", "other")[1]
    first, second, third = (signed_in(sign_ins, each)[0] for each in (key_secret, bob, stranger))
    assert sign_ins.list("acme") == [second, first]
    assert sign_ins.list("acme", key.id) == [first]
    assert sign_ins.list("other") == [third]
    assert (first.key_name, first.tenant) == ("alice", "acme")


def test_the_one_that_is_idle_longest_ends_for_one_too_many(
    sign_ins: SignIns, key_secret: str, keys: Keys, clock: Clock, database: Database
) -> None:
    other = signed_in(sign_ins, keys.create("bob", "acme")[1])[1]
    made = []
    for _ in range(MOST_OF_A_KEY):
        made.append(signed_in(sign_ins, key_secret))
        clock.advance(1)
    sign_ins.record_use({made[0][0].id: clock.now})
    count = Changes(database).count()
    _, last = signed_in(sign_ins, key_secret)
    assert Changes(database).count() == count + 1
    assert code(sign_ins.accept, made[1][1]) == Code.SIGN_IN_ENDED
    for kept in (made[0][1], *(halves for _, halves in made[2:]), last, other):
        sign_ins.accept(kept)


def test_sign_ins_at_once_keep_the_limit(sign_ins: SignIns, key_secret: str) -> None:
    at_once(MOST_OF_A_KEY + 4, lambda _: signed_in(sign_ins, key_secret))
    assert len(sign_ins.list("acme")) == MOST_OF_A_KEY


def test_ended_sign_ins_and_codes_are_deleted_by_later_ones(
    sign_ins: SignIns, key_secret: str, clock: Clock, database: Database
) -> None:
    for _ in range(2):
        signed_in(sign_ins, key_secret)
        sign_ins.create_code(key_secret)
        clock.advance(25 * HOUR)
    with database.read() as session:
        for table in ("sign_ins", "sign_in_codes"):
            assert session.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() == 1


def test_last_use_never_decreases_and_is_not_a_counted_change(
    sign_ins: SignIns, key_secret: str, database: Database, clock: Clock
) -> None:
    made, halves = signed_in(sign_ins, key_secret)
    count = Changes(database).count()
    later = clock.now + timedelta(minutes=2)
    sign_ins.record_use({made.id: later, "signin-none": later})
    sign_ins.record_use({made.id: clock.now})
    assert sign_ins.get(halves).last_used_at == later
    assert Changes(database).count() == count


# -- codes -------------------------------------------------------------------------------------------------------------


def by_code(sign_ins: SignIns, secret: str) -> SignInHalves:
    return SignInHalves(sign_ins.create_by_code(secret, challenge_of(TOKEN), "1.2.3.4")[1], TOKEN)


def test_code_signs_in_once(sign_ins: SignIns, key: Key, key_secret: str, database: Database) -> None:
    secret, _ = sign_ins.create_code(key_secret)
    assert secret not in repr(snapshot(database))
    assert sign_ins.accept(by_code(sign_ins, secret)).key == key
    assert code(by_code, sign_ins, secret) == Code.SIGN_IN_CODE_INVALID


def test_code_that_many_use_at_once_signs_in_once(sign_ins: SignIns, key_secret: str) -> None:
    secret, _ = sign_ins.create_code(key_secret)

    def attempt(_: int) -> str:
        try:
            by_code(sign_ins, secret)
        except MensError as error:
            return error.code
        return "signed in"

    assert sorted(at_once(6, attempt)) == [*[Code.SIGN_IN_CODE_INVALID] * 5, "signed in"]
    assert len(sign_ins.list("acme")) == 1


def test_code_is_valid_for_a_minute(sign_ins: SignIns, key_secret: str, clock: Clock) -> None:
    (late, expires_at), (early, _) = sign_ins.create_code(key_secret), sign_ins.create_code(key_secret)
    assert expires_at == clock.now + timedelta(seconds=60)
    clock.advance(59)
    by_code(sign_ins, early)
    clock.advance(1)
    assert code(by_code, sign_ins, late) == Code.SIGN_IN_CODE_INVALID


@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_code_ends_with_its_key(
    sign_ins: SignIns, key: Key, key_secret: str, keys: Keys, clock: Clock, end: str
) -> None:
    secret, _ = sign_ins.create_code(key_secret)
    if end == "revoked":
        keys.revoke(key.id)
    else:
        keys.change(key.id, KeyChange(expires_at=clock.now + timedelta(seconds=10)))
        clock.advance(10)
    assert code(by_code, sign_ins, secret) == Code.SIGN_IN_CODE_INVALID


@pytest.mark.parametrize("overlap_seconds", [0, HOUR])
def test_code_ends_when_its_key_is_rotated(
    sign_ins: SignIns, key: Key, key_secret: str, keys: Keys, overlap_seconds: int
) -> None:
    secret, _ = sign_ins.create_code(key_secret)
    keys.rotate(key.id, overlap_seconds)
    assert code(by_code, sign_ins, secret) == Code.SIGN_IN_CODE_INVALID


def test_code_of_a_replaced_secret_opens_nothing_after_its_end(
    sign_ins: SignIns, key: Key, key_secret: str, keys: Keys, clock: Clock
) -> None:
    end = clock.now + timedelta(seconds=30)
    keys.rotate(key.id, overlap_seconds=30)
    (early, expires_at), (late, _) = sign_ins.create_code(key_secret), sign_ins.create_code(key_secret)
    assert expires_at == end
    assert sign_ins.accept(by_code(sign_ins, early)).until == end
    clock.advance(30)
    assert code(by_code, sign_ins, late) == Code.SIGN_IN_CODE_INVALID


def test_guessed_code_is_refused(sign_ins: SignIns, key_secret: str) -> None:
    secret, _ = sign_ins.create_code(key_secret)
    for wrong in ("x", secret[:-1], challenge_of(secret)):
        assert code(by_code, sign_ins, wrong) == Code.SIGN_IN_CODE_INVALID


def test_times_are_in_utc(sign_ins: SignIns, key_secret: str) -> None:
    made, _ = signed_in(sign_ins, key_secret)
    assert made.created_at.tzinfo is UTC
    assert abs(made.created_at - datetime.now(UTC)) < timedelta(minutes=1)


# -- the identity provider --------------------------------------------------------------------------------------------------------------

PENDING = PendingSignIn(challenge_of(TOKEN), "nonce", "verifier", "https://mens.example/console/callback")


def test_sign_in_that_many_finish_at_once_is_finished_once(sign_ins: SignIns) -> None:
    state = sign_ins.begin(PENDING)
    assert code(sign_ins.take_pending, state, "u" * 43) == Code.SIGN_IN_STATE_INVALID  # and stays as it is

    def attempt(_: int) -> str:
        try:
            return sign_ins.take_pending(state, TOKEN).nonce
        except MensError as error:
            return error.code

    assert sorted(at_once(4, attempt)) == [*[Code.SIGN_IN_STATE_INVALID] * 3, "nonce"]


def test_sign_in_that_has_begun_waits_ten_minutes(sign_ins: SignIns, clock: Clock, database: Database) -> None:
    late, early = sign_ins.begin(PENDING), sign_ins.begin(PENDING)
    assert late not in repr(snapshot(database))
    clock.advance(PENDING_LIFE.total_seconds() - 1)
    assert sign_ins.take_pending(early, TOKEN) == PENDING
    clock.advance(1)
    assert code(sign_ins.take_pending, late, TOKEN) == Code.SIGN_IN_STATE_INVALID


def test_persons_sign_ins_are_deleted_before_the_change_is_counted(
    sign_ins: SignIns, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who ends a sign-in locks it and then counts, so the other order would let both wait for each other."""
    monkeypatch.setattr(sign_ins_module, "MOST_OF_A_KEY", 1)
    sign_ins.create_for_person(ALICE, PENDING.challenge, "")
    sent: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *call: sent.append(call[2]))
    sign_ins.create_for_person(ALICE, PENDING.challenge, "")
    words = [" ".join(statement.split()[:3]) for statement in sent]
    counted, deletes = (
        words.index("INSERT INTO changes"),
        [i for i, one in enumerate(words) if one == "DELETE FROM sign_ins"],
    )
    assert len(deletes) == 2  # the expired ones, and the one that is too many
    assert max(deletes) < counted
