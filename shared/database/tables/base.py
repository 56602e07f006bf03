"""Base of all tables: names of constraints, and types for times and tenants."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any

from sqlalchemy import JSON, BigInteger, Dialect, Insert, MetaData, String, insert
from sqlalchemy.orm import DeclarativeBase, Session
from sqlalchemy.types import TypeDecorator

from shared.database.tenancy import BEFORE_TENANTS, SHARED

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcTime(TypeDecorator[datetime]):
    """An aware UTC time, stored as whole milliseconds since 1970: equal in order and value in every database."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        return None if value is None else round(value.timestamp() * 1000)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        return None if value is None else datetime.fromtimestamp(value / 1000, UTC)


class OwnerTenant(TypeDecorator[str]):
    """The tenant of a job, in the former owner column: an API of the previous release writes and reads ``default``."""

    impl = String(64)
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return BEFORE_TENANTS if value == SHARED else value

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return SHARED if value == BEFORE_TENANTS else value


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {dict[str, Any]: JSON, list[str]: JSON, datetime: UtcTime}


def insert_rows(session: Session, row: type[Base], values: list[dict[str, Any]]) -> None:
    """Insert rows by one statement; the transaction must not need them again. Flushing objects would take several times
    longer.

    Args:
        session: session in which the objects that the rows refer to have been flushed.
        row: class of the rows, which must not be audited, because the recorder only sees objects.
        values: values of the rows, each with the same columns; not empty.
    """
    # Not `session.execute`, which would flush first: the transaction's changes would be written once for each of its
    # statements.
    session.connection().execute(_insert(row), values)


@cache
def _insert(row: type[Base]) -> Insert:
    return insert(Base.metadata.tables[row.__tablename__])
