"""Certificates of merged models that replicas serve as their base: by the base's digest and the replica's name."""

from __future__ import annotations

import math
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import delete, select

from shared.database.change_counter import bump
from shared.database.connection import Database
from shared.database.records import Value
from shared.database.tables.adapters import BaseCertificateRow
from shared.errors import Code, NotFound


class BaseCertificate(Value):
    """Measurement of a replica, made once per start; ``certificate`` has an adapter's format (docs/certificates.md)."""

    digest: str
    replica: str
    instance: str | None
    certificate: dict[str, Any]
    measured_at: datetime


class BaseCertificates:
    """Certificates of served merged models. Each operation runs in one transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def of(self, digest: str) -> list[BaseCertificate]:
        """Return the certificates of the base with this digest, by replica."""
        query = select(BaseCertificateRow).where(BaseCertificateRow.digest == digest)
        with self._db.read() as session:
            return [
                BaseCertificate.model_validate(row)
                for row in session.scalars(query.order_by(BaseCertificateRow.replica))
            ]

    def store(self, digest: str, replica: str, instance: str | None, certificate: dict[str, Any]) -> None:
        """Store a replica's certificate, replacing its earlier one."""
        with self._db.write() as session:
            session.merge(
                BaseCertificateRow(
                    digest=digest,
                    replica=replica,
                    instance=instance,
                    certificate=_as_json(certificate),
                    measured_at=datetime.now(UTC),
                )
            )
            session.flush()
            bump(session, "certificates")

    def keep_only(self, replicas: Collection[str]) -> None:
        """Delete the certificates of replicas that are gone: their failures say nothing about the others."""
        gone = BaseCertificateRow.replica.not_in(replicas)
        with self._db.read() as session:
            if session.scalar(select(BaseCertificateRow.replica).where(gone).limit(1)) is None:
                return
        with self._db.write() as session:
            session.execute(delete(BaseCertificateRow).where(gone))
            bump(session, "certificates")


def _as_json(value: Any) -> Any:
    """Convert a certificate to JSON, with null for non-finite numbers, which PostgreSQL's JSON does not have."""
    if isinstance(value, dict):
        return {key: _as_json(member) for key, member in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_certified(certificates: Collection[BaseCertificate]) -> bool:
    """Return whether a merged model may be offered: at least one replica was measured, and none failed."""
    return bool(certificates) and all(row.certificate["passed"] for row in certificates)


def refuse_uncertified(name: str, certificates: Collection[BaseCertificate]) -> None:
    """Refuse a merged model that may not be offered.

    Raises:
        NotFound: ``MODEL_UNCERTIFIED``, with the failed certificates by replica.
    """
    if is_certified(certificates):
        return
    failed = {row.replica: row.certificate for row in certificates if not row.certificate["passed"]}
    failures = ", ".join(
        f"{replica} failed {' and '.join(certificate['failed'])}" for replica, certificate in failed.items()
    )
    raise NotFound(
        Code.MODEL_UNCERTIFIED,
        f"The merged model {name} is not offered: {failures or 'no replica that serves it has been measured yet'}.",
        remedy=f"See `mens models show {name}`; restart the replica to measure it again."
        if failed
        else f"Serve it with `mens up --base {name}`; a replica is measured within seconds of its start.",
        param="model",
        details={"failed": failed},
    )
