"""Keys, the usage of models by them, and counts of changes that the request path follows."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from shared.database.tables.base import Base
from shared.database.tenancy import SHARED


class KeyRow(Base):
    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(64))
    secret_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    # The secret before the last rotation, accepted until then.
    previous_secret_sha256: Mapped[str | None] = mapped_column(String(64), unique=True, index=True)
    previous_secret_until: Mapped[datetime | None]
    # Accurate to about a minute.
    last_used_at: Mapped[datetime | None]
    tenant: Mapped[str] = mapped_column(String(64), server_default=SHARED)
    role: Mapped[str] = mapped_column(String(16), server_default="admin")
    requests_per_minute: Mapped[int | None]
    concurrent_requests: Mapped[int | None]
    tokens_per_minute: Mapped[int | None]
    # Job of the attempt that a key was created for; the key is revoked when the attempt ends.
    job_id: Mapped[str | None] = mapped_column(String(40), index=True)
    attempt: Mapped[int | None] = mapped_column(Integer)
    # Person who signs in through the identity provider: the provider's name of them, and the hash of it with the issuer.
    subject: Mapped[str | None] = mapped_column(String(255))
    person_sha256: Mapped[str | None] = mapped_column(String(64), index=True)


class UsageRow(Base):
    """Usage of a model by a key on a day (UTC)."""

    __tablename__ = "usage"

    day: Mapped[str] = mapped_column(String(10), primary_key=True)
    key_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    model: Mapped[str] = mapped_column(String(160), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64), index=True)
    requests: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)


class ChangeRow(Base):
    """Counts changes of keys, aliases and adapters, which the request path caches (`api/inference/lookup_cache.py`)."""

    __tablename__ = "changes"

    what: Mapped[str] = mapped_column(String(16), primary_key=True)
    count: Mapped[int] = mapped_column(BigInteger)


class SignInRow(Base):
    """A sign-in to the console: a secret of a key for a while, in two halves."""

    __tablename__ = "sign_ins"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64), index=True)
    key_id: Mapped[str] = mapped_column(String(40), index=True)
    cookie_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    token_sha256: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)
    # Accurate to about a minute.
    last_used_at: Mapped[datetime]


class SignInCodeRow(Base):
    """A code that signs in once."""

    __tablename__ = "sign_in_codes"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64))
    key_id: Mapped[str] = mapped_column(String(40))
    code_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    expires_at: Mapped[datetime] = mapped_column(index=True)


class PendingSignInRow(Base):
    """A sign-in through the identity provider that has begun: secrets that its answer must match."""

    __tablename__ = "pending_sign_ins"

    state_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    token_sha256: Mapped[str] = mapped_column(String(64))
    nonce: Mapped[str] = mapped_column(String(64))
    code_verifier: Mapped[str] = mapped_column(String(128))
    redirect_uri: Mapped[str] = mapped_column(String(512))
    expires_at: Mapped[datetime] = mapped_column(index=True)
