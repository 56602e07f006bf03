"""The key of the placeholders that replace personal data: MENS_CORPUS_KEY, or a key that is generated once and kept in
the home folder.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from corpus.filters.redactors import NAME
from shared.host import disk_errors, path_errors
from shared.settings import Settings, read_settings

KEY_NAME = "corpus.key"
KEY_BYTES = 32


class PlaceholderKey(NamedTuple):
    """A key, and the file that holds it; None for a key of the environment."""

    value: bytes
    file: Path | None = None

    @property
    def note(self) -> str:
        """Note for a key that was generated; empty if the user set one."""
        if self.file is None:
            return ""
        here = Path.cwd()
        shown = self.file.relative_to(here) if self.file.is_relative_to(here) else self.file
        return (
            f"MENS_CORPUS_KEY is not set, so placeholders are made with the key in {shown}. With a different key, "
            "the same person gets a different placeholder."
        )


def find_key(redactors: Sequence[str], *, makes: bool = True) -> PlaceholderKey | None:
    """Return the key for these redactors, generated at its first use; None if no redactor takes a key.

    Args:
        makes: whether to generate a missing key; if not, None is returned for it.

    Raises:
        InvalidRequest: ``PATH_INVALID``: the home folder cannot be written.
    """
    if not any(NAME.match(name) for name in redactors):
        return None
    settings = read_settings(Settings)
    if value := settings.corpus_key.get_secret_value():
        return PlaceholderKey(value.encode())
    file = settings.home / KEY_NAME
    if not makes and not file.is_file():
        return None
    with disk_errors(), path_errors():
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make(file)
        return PlaceholderKey(file.read_bytes(), file)


def _make(file: Path) -> None:
    """Write a new key, unless one exists. If two processes try, both use the key that was written first."""
    if file.is_file():
        return
    own = file.with_name(f"{file.name}.{os.getpid()}")
    with os.fdopen(os.open(own, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as written:
        written.write(secrets.token_hex(KEY_BYTES).encode())
        written.flush()
        os.fsync(written.fileno())
    try:
        os.link(own, file)
    except FileExistsError:
        pass
    finally:
        own.unlink()
