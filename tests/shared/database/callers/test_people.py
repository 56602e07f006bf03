"""Keys of people who sign in through an identity provider, on both databases."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import update

from shared.database.callers.key_records import KeyChange
from shared.database.callers.keys import Keys
from shared.database.callers.sign_ins import LONGEST_AGE, SignInHalves, SignIns
from shared.database.connection import Database
from shared.database.overview.audit_log import AuditFilter, AuditLog
from shared.database.tables.keys import KeyRow
from shared.database.tenancy import Role
from shared.errors import Code
from tests.support.builders import at_once
from tests.support.clock import Clock
from tests.support.refusals import code
from tests.support.sign_ins import ALICE, CHALLENGE, TOKEN, challenge_of


def test_person_who_signs_in_several_times_at_once_has_one_key(sign_ins: SignIns, keys: Keys) -> None:
    made = at_once(4, lambda _: sign_ins.create_for_person(ALICE, CHALLENGE, "10.0.0.1")[0])
    (key,) = keys.all("acme")
    assert {each.key_id for each in made} == {key.id}
    assert (key.name, key.subject, key.role) == ("alice@acme.example", "00u1", Role.TRAINER)


def test_person_is_issuer_and_subject(sign_ins: SignIns, keys: Keys) -> None:
    people = [ALICE, ALICE._replace(issuer="https://other.example"), ALICE._replace(subject="00u2")]
    made = [sign_ins.create_for_person(person, CHALLENGE, "")[0] for person in people]
    assert len({each.key_id for each in made}) == 3
    assert len({key.name for key in keys.all("acme")}) == 3


def test_revoked_person_gets_another_key_at_the_next_sign_in(sign_ins: SignIns, keys: Keys) -> None:
    (first, cookie) = sign_ins.create_for_person(ALICE, CHALLENGE, "")
    keys.revoke(first.key_id)
    assert code(sign_ins.accept, SignInHalves(cookie, TOKEN)) == Code.SIGN_IN_ENDED
    second, _ = sign_ins.create_for_person(ALICE, CHALLENGE, "")
    assert second.key_id != first.key_id


def test_person_whose_key_has_expired_gets_a_reason_and_loses_former_rights(
    sign_ins: SignIns, keys: Keys, clock: Clock
) -> None:
    made, _ = sign_ins.create_for_person(ALICE, CHALLENGE, "")
    keys.change(made.key_id, KeyChange(expires_at=clock.now + timedelta(minutes=1)))
    sign_ins.create_for_person(ALICE, CHALLENGE, "")
    clock.advance(60)
    assert code(sign_ins.create_for_person, ALICE, CHALLENGE, "") == Code.KEY_EXPIRED
    viewer = ALICE._replace(role=Role.VIEWER)
    assert code(sign_ins.create_for_person, viewer, CHALLENGE, "") == Code.KEY_EXPIRED
    assert keys.get(made.key_id, "acme").role == Role.VIEWER
    assert len(sign_ins.list("acme")) == 2


def test_secret_that_a_persons_key_got_elsewhere_ends_at_the_next_sign_in(
    sign_ins: SignIns, keys: Keys, database: Database
) -> None:
    made, _ = sign_ins.create_for_person(ALICE, CHALLENGE, "")
    with database.write() as session:
        later = LONGEST_AGE + made.created_at
        secrets = {"secret_sha256": challenge_of("mens-a"), "previous_secret_sha256": challenge_of("mens-b")}
        session.execute(update(KeyRow).values(previous_secret_until=later, **secrets))
    assert keys.authenticate("mens-a") == keys.authenticate("mens-b")
    for _ in range(2):
        sign_ins.create_for_person(ALICE, CHALLENGE, "")
    for secret in ("mens-a", "mens-b"):
        assert code(keys.authenticate, secret) == Code.KEY_INVALID
    actions = [each.action for each in AuditLog(database).list(AuditFilter(action="key"))]
    assert actions == ["key.rotated", "key.created"]  # a sign-in alone gives no new secret
