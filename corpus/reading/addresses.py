"""Addresses of sources: maps a name to a URL, which never leaves this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from shared.errors import Code, InvalidRequest, NotFound

SQLITE_ENDINGS = (".db", ".sqlite", ".sqlite3")
_DRIVERS = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg"}
TESTED = ("postgresql", "sqlite")


@dataclass(frozen=True)
class SourceAddress:
    """Address of a source.

    Attributes:
        name: the source's name, for provenance.
        url: URL with user and password; therefore left out of this object's ``repr``.
    """

    name: str
    url: URL = field(repr=False)

    @property
    def place(self) -> str:
        """Host and database, without user, password and options."""
        if self.is_sqlite:
            return f"sqlite:{Path(self.url.database or '').name}"
        port = f":{self.url.port}" if self.url.port else ""
        return f"{self.url.get_backend_name()}://{self.url.host or 'localhost'}{port}/{self.url.database or ''}"

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @property
    def is_postgresql(self) -> bool:
        return self.url.get_backend_name() == "postgresql"


def find_address(source: str, configured: Mapping[str, SecretStr], folder: Path = Path()) -> SourceAddress:
    """Return the address of a source, from a configured name or the path of an SQLite file.

    Raises:
        NotFound: ``CORPUS_SOURCE_UNKNOWN``.
        InvalidRequest: ``SETTINGS_INVALID``: the configured address is not a URL.
    """
    if source in configured:
        return address_of(source, configured[source].get_secret_value(), "MENS_CORPUS_SOURCES")
    if source.endswith(SQLITE_ENDINGS):
        path = (folder / source).absolute()
        return SourceAddress(path.stem, URL.create("sqlite", database=str(path)))
    names = f"It contains: {', '.join(sorted(configured))}." if configured else "It is not set."
    raise NotFound(
        Code.CORPUS_SOURCE_UNKNOWN,
        f"The source {source!r} is not in MENS_CORPUS_SOURCES. {names}",
        remedy=f"""Set MENS_CORPUS_SOURCES='{{"{source}": "postgresql://user:password@host/database"}}', name the variable that """
        "holds the URL with --url-env, or give the path of an SQLite file that ends in .db, .sqlite or .sqlite3.",
        param="pull.source",
    )


def address_of(source: str, url: str, variable: str) -> SourceAddress:
    """Return the address that a variable holds.

    Raises:
        InvalidRequest: ``SETTINGS_INVALID``, without the value.
    """
    try:
        parsed = make_url(url.strip())
    except ArgumentError:
        raise InvalidRequest(
            Code.SETTINGS_INVALID,
            f"{variable}: the address of {source!r} is not a URL.",
            remedy=(
                "Write postgresql://user:password@host:5432/database or sqlite:////path/file.db; percent-encode a "
                "password."
            ),
            param=variable,
        ) from None
    return SourceAddress(source, parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername)))
