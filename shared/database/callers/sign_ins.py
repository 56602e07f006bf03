"""Sign-ins to the console: each is an additional, short-lived secret of a key, in two halves that are useless alone.

One half is a cookie that scripts cannot read, the other a token in the page's storage, which the server sees with the
first request for the first time. The table has the hashes of both. Role, limits, usage and revocation are those of the
key. A person who signs in through the identity provider has a key too, without a secret.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from shared.database.audit.actors import MAX_ACTOR, AuditActor, act_as, acting
from shared.database.callers.key_records import Key
from shared.database.callers.key_secrets import AcceptedSecret, accepted, expired, hash_secret
from shared.database.callers.people import Person, add_person_key, lock_person_keys, revoke_person_keys
from shared.database.change_counter import bump
from shared.database.connection import Database, whole_milliseconds
from shared.database.records import Value, new_id
from shared.database.tables.keys import KeyRow, PendingSignInRow, SignInCodeRow, SignInRow
from shared.errors import Code, NotFound, Unauthenticated

SIGN_IN_ID = "signin"
"""Prefix of the ids of sign-ins."""
LONGEST_AGE = timedelta(hours=24)
LONGEST_IDLE = timedelta(hours=8)
PERSON_AGE = timedelta(hours=12)
"""Longest age of a sign-in through the identity provider; with the next sign-in, the person's groups are read again."""
PENDING_LIFE = timedelta(minutes=10)
CODE_LIFE = timedelta(seconds=60)
MOST_OF_A_KEY = 20
"""Largest number of sign-ins per key; a further sign-in ends the least recently used one."""


class SignInHalves(NamedTuple):
    """Secret of a signed-in request, in place of a key's."""

    cookie: str
    token: str


class SignIn(Value):
    """A sign-in, without its halves."""

    id: str
    key_id: str
    key_name: str
    tenant: str
    created_at: datetime
    last_used_at: datetime
    expires_at: datetime


class PendingSignIn(NamedTuple):
    """A sign-in through the identity provider that has begun: the values that its answer must match.

    Attributes:
        challenge: SHA-256 of the page's token, in hex.
        nonce: value that the provider repeats in the signed answer.
        code_verifier: secret of PKCE, whose hash the provider got.
        redirect_uri: address to which the provider sends the browser back.
    """

    challenge: str
    nonce: str
    code_verifier: str
    redirect_uri: str


class SignIns:
    """Operations on sign-ins. Each change runs in one transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def create(self, secret: str, challenge: str) -> tuple[SignIn, str]:
        """Sign in with a key. The sign-in ends with the secret, if that was replaced.

        Args:
            secret: the key's secret.
            challenge: SHA-256 of the page's token, in hex.

        Returns:
            the sign-in, and its cookie's value, which is stored only as a hash.
        """
        with self._db.write() as session:
            # Checked again under the lock, because the key may have been rotated or revoked since the request was
            # accepted.
            accepted_key = accepted(session, secret, self._db.now(session), lock=True)
            if self._make_room(session, accepted_key.key.id):
                bump(session, "keys")
            return self._add(session, accepted_key.key, challenge, accepted_key.until)

    def create_by_code(self, code: str, challenge: str, address: str) -> tuple[SignIn, str]:
        """Sign in with a code, which is used up; like :meth:`create`.

        Args:
            code: code that :meth:`create_code` returned.
            challenge: SHA-256 of the page's token, in hex.
            address: the client's, for the audit log.

        Raises:
            Unauthenticated: ``SIGN_IN_CODE_INVALID``: it is unknown, used or too old, or its key is no longer valid.
        """
        with self._db.read() as session:  # a guess must not wait for the lock of writers
            key = Key.model_validate(self._by_code(session, code)[1])
        with acting(AuditActor.of_key(key.id, key.name, key.subject, address)), self._db.write() as session:
            # The key's row is locked before the rows of its codes, in the same order as in a rotation; so each code is
            # used once.
            session.execute(select(KeyRow.id).where(KeyRow.id == key.id).with_for_update())
            row, key_row = self._by_code(session, code)
            session.delete(row)
            if self._make_room(session, key.id):
                bump(session, "keys")
            # The code may have been created with a secret that was replaced.
            return self._add(session, Key.model_validate(key_row), challenge, key_row.previous_secret_until)

    def begin(self, pending: PendingSignIn) -> str:
        """Store a sign-in through the identity provider that begins; return the state that its answer must repeat."""
        state = secrets.token_urlsafe(32)
        with self._db.write() as session:
            now = self._db.now(session)
            session.execute(delete(PendingSignInRow).where(PendingSignInRow.expires_at <= now))
            row = PendingSignInRow(
                state_sha256=hash_secret(state),
                token_sha256=pending.challenge,
                nonce=pending.nonce,
                code_verifier=pending.code_verifier,
                redirect_uri=pending.redirect_uri,
                expires_at=now + PENDING_LIFE,
            )
            session.add(row)
        return state

    def take_pending(self, state: str, token: str) -> PendingSignIn:
        """Return a sign-in that has begun, which is used up.

        Args:
            state: state that :meth:`begin` returned, as the provider's answer repeats it.
            token: token of the page that has begun; no other browser has it.

        Raises:
            Unauthenticated: ``SIGN_IN_STATE_INVALID``: unknown, used, too old, or begun in another browser.
        """
        with self._db.read() as session:  # a guess must not wait for the lock of writers
            self._pending(session, state, token)
        with self._db.write() as session:
            row = self._pending(session, state, token, lock=True)
            session.delete(row)
            return PendingSignIn(row.token_sha256, row.nonce, row.code_verifier, row.redirect_uri)

    def create_for_person(self, person: Person, challenge: str, address: str) -> tuple[SignIn, str]:
        """Sign in a person whom the identity provider has authenticated; like :meth:`create`.

        Args:
            person: the person, with the current name, tenant and role, which their key gets.
            challenge: SHA-256 of the page's token, in hex.
            address: the client's, for the audit log.

        Raises:
            Unauthenticated: ``KEY_EXPIRED``: an admin has set an expiry of the key, and it has passed.
        """
        with acting(_person_actor(person.name, person.subject, address)), self._db.write() as session:
            for key_id in lock_person_keys(session, person):
                self._make_room(session, key_id)  # before the changes are counted
            key = add_person_key(session, person)
            act_as(
                AuditActor.of_key(key.id, key.name, key.subject, address)
            )  # events are written at the end, and name the key too
            now = self._db.now(session)
            if key.expires_at is None or now < key.expires_at:
                return self._add(session, key, challenge, now + PERSON_AGE)
        # Raised after the commit, so that the person's keys in other tenants stay revoked.
        raise expired(key, key.expires_at)

    def end_person(self, issuer: str, subject: str, name: str, address: str) -> None:
        """End all sign-ins of a person who no longer has a role."""
        with acting(_person_actor(name, subject, address)), self._db.write() as session:
            revoke_person_keys(session, issuer, subject)
            session.flush()
            bump(session, "keys")

    def create_code(self, secret: str) -> tuple[str, datetime]:
        """Return a new code that signs in once with the secret's key, and when the code expires."""
        code = secrets.token_urlsafe(24)
        with self._db.write() as session:
            now = self._db.now(session)
            key, until = accepted(session, secret, now, lock=True)[:2]
            session.execute(delete(SignInCodeRow).where(SignInCodeRow.expires_at <= now))
            row = SignInCodeRow(
                id=new_id("signincode"),
                tenant=key.tenant,
                key_id=key.id,
                code_sha256=hash_secret(code),
                expires_at=min(now + CODE_LIFE, until) if until else now + CODE_LIFE,
            )
            session.add(row)
            return code, row.expires_at

    def accept(self, halves: SignInHalves) -> AcceptedSecret:
        """Return the key that both halves of a sign-in belong to, and when the sign-in ends unless it is used.

        Raises:
            Unauthenticated: ``SIGN_IN_ENDED``: unknown, idle or expired, or its key is no longer valid.
        """
        with self._db.read() as session:
            row, key_row, until = self._by_halves(session, halves)
            return AcceptedSecret(Key.model_validate(key_row), until, row.id, row.expires_at)

    def get(self, halves: SignInHalves) -> SignIn:
        """Return the sign-in that both halves belong to.

        Raises:
            Unauthenticated: ``SIGN_IN_ENDED``.
        """
        with self._db.read() as session:
            row, key_row, _ = self._by_halves(session, halves)
            return _sign_in(row, key_row.name)

    def list(self, tenant: str, key_id: str | None = None) -> list[SignIn]:
        """Return the sign-ins of a tenant, or of one of its keys, that have not ended; the newest first."""
        query = (
            select(SignInRow, KeyRow.name)
            .join(KeyRow, KeyRow.id == SignInRow.key_id)
            .where(SignInRow.tenant == tenant, KeyRow.revoked_at.is_(None))
            .order_by(SignInRow.id.desc())
        )
        if key_id is not None:
            query = query.where(SignInRow.key_id == key_id)
        with self._db.read() as session:
            now = self._db.now(session)
            query = query.where(SignInRow.expires_at > now, SignInRow.last_used_at > now - LONGEST_IDLE)
            return [_sign_in(row, name) for row, name in session.execute(query)]

    def end(self, sign_in_id: str, tenant: str) -> SignIn:
        """End a sign-in: its halves are refused from now on.

        Raises:
            NotFound: ``SIGN_IN_NOT_FOUND``: it does not exist, or it is another tenant's.
        """
        with self._db.write() as session:
            row = session.get(SignInRow, sign_in_id, with_for_update=True)
            if row is None or row.tenant != tenant:
                raise sign_in_not_found(sign_in_id)
            key_row = session.get(KeyRow, row.key_id)
            session.delete(row)
            bump(session, "keys")
            return _sign_in(row, key_row.name if key_row else "")

    def record_use(self, used: Mapping[str, datetime]) -> None:
        """Record when sign-ins, by id, were last used."""
        with self._db.write() as session:
            # In one order everywhere, so that two processes never wait for each other.
            for sign_in_id, moment in sorted(used.items()):
                at = whole_milliseconds(moment)
                is_older = (SignInRow.id == sign_in_id, SignInRow.last_used_at < at)
                session.execute(update(SignInRow).where(*is_older).values(last_used_at=at))

    def _make_room(self, session: Session, key_id: str) -> bool:
        """Delete expired sign-ins, and those of a key that exceed the limit for a new one; return whether any exceeded
        it.

        The key is locked until the transaction ends, so that concurrent sign-ins of one key cannot exceed the limit
        together.
        """
        session.execute(delete(SignInRow).where(SignInRow.expires_at <= self._db.now(session)))
        query = select(SignInRow).where(SignInRow.key_id == key_id).order_by(SignInRow.last_used_at.desc())
        surplus = list(session.scalars(query.offset(MOST_OF_A_KEY - 1)))
        for row in surplus:
            session.delete(row)
        session.flush()
        return bool(surplus)

    def _add(self, session: Session, key: Key, challenge: str, until: datetime | None) -> tuple[SignIn, str]:
        cookie, now = secrets.token_urlsafe(32), self._db.now(session)
        latest = now + LONGEST_AGE
        row = SignInRow(
            id=new_id(SIGN_IN_ID),
            tenant=key.tenant,
            key_id=key.id,
            cookie_sha256=hash_secret(cookie),
            token_sha256=challenge,
            created_at=now,
            expires_at=min(until, latest) if until and until > now else latest,
            last_used_at=now,
        )
        session.add(row)
        session.flush()
        return _sign_in(row, key.name), cookie

    def _by_halves(self, session: Session, halves: SignInHalves) -> tuple[SignInRow, KeyRow, datetime]:
        query = select(SignInRow, KeyRow).join(KeyRow, KeyRow.id == SignInRow.key_id)
        rows = session.execute(query.where(SignInRow.cookie_sha256 == hash_secret(halves.cookie))).one_or_none()
        if rows is None or not hmac.compare_digest(rows[0].token_sha256, hash_secret(halves.token)):
            raise sign_in_ended()
        row, key_row = rows
        ends = (row.expires_at, row.last_used_at + LONGEST_IDLE, key_row.expires_at)
        until = min(end for end in ends if end)
        if key_row.revoked_at is not None or self._db.now(session) >= until:
            raise sign_in_ended()
        return row, key_row, until

    def _pending(self, session: Session, state: str, token: str, *, lock: bool = False) -> PendingSignInRow:
        row = session.get(PendingSignInRow, hash_secret(state), with_for_update=lock)
        is_of_page = row is not None and hmac.compare_digest(row.token_sha256, hash_secret(token))
        if row is None or not is_of_page or self._db.now(session) >= row.expires_at:
            raise Unauthenticated(
                Code.SIGN_IN_STATE_INVALID,
                "This answer of the identity provider does not belong to a sign-in that began in this browser in the "
                "last ten minutes.",
                remedy="Begin again: press the button of single sign-on.",
                param="state",
            )
        return row

    def _by_code(self, session: Session, code: str) -> tuple[SignInCodeRow, KeyRow]:
        row = session.scalar(select(SignInCodeRow).where(SignInCodeRow.code_sha256 == hash_secret(code)))
        key_row = session.get(KeyRow, row.key_id) if row else None
        now = self._db.now(session)
        if row is None or key_row is None or now >= row.expires_at or not _is_valid(key_row, now):
            raise Unauthenticated(
                Code.SIGN_IN_CODE_INVALID,
                "This sign-in code is not valid: a code works once, for one minute.",
                remedy="Get another code with `mens open`, or sign in with a key.",
                param="code",
            )
        return row, key_row


def sign_in_ended() -> Unauthenticated:
    """Return the error for halves that do not belong to a sign-in, or no longer do."""
    return Unauthenticated(
        Code.SIGN_IN_ENDED,
        "You are no longer signed in.",
        remedy="Sign in again: with `mens open`, or with a key.",
    )


def sign_in_not_found(sign_in_id: str) -> NotFound:
    """Return the error for a sign-in that does not exist."""
    return NotFound(
        Code.SIGN_IN_NOT_FOUND,
        f"The sign-in {sign_in_id!r} does not exist.",
        remedy="List them: GET /v1/sign_ins.",
        param="sign_in_id",
    )


def _person_actor(name: str, subject: str, address: str) -> AuditActor:
    return AuditActor("person", "", f"{name} ({subject})"[:MAX_ACTOR], address)


def _is_valid(row: KeyRow, now: datetime) -> bool:
    return row.revoked_at is None and (row.expires_at is None or now < row.expires_at)


def _sign_in(row: SignInRow, key_name: str) -> SignIn:
    names = ("id", "key_id", "tenant", "created_at", "last_used_at", "expires_at")
    return SignIn(key_name=key_name, **{name: getattr(row, name) for name in names})
