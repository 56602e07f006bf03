"""The command that starts an installation on this machine, for remedies: with the base that the command concerns."""

from __future__ import annotations

import shlex
from contextlib import suppress
from contextvars import ContextVar

from shared.errors import MensError
from shared.settings import Settings, read_settings

_base: ContextVar[str | None] = ContextVar("base", default=None)


def note_base(name: str | None) -> str | None:
    """Callback of a model's option or argument: from now on a remedy names this base, if it is one."""
    _base.set(name)
    return name


def start_command() -> str:
    """Return the command in backquotes: with the base that this command names, or the catalogue's only one.

    If neither is known, it says that a base can be named.
    """
    from shared.base_models.catalog import load_catalog  # imported here, because `mens --help` does not need it

    originals: dict[str, str] = {}
    with suppress(MensError):  # a command that needs the catalogue reports its fault
        bases = load_catalog(read_settings(Settings).catalog_path).bases
        originals = {base.name: base.twin_of.name if base.twin_of else base.name for base in bases}
    choices = {originals.get(_base.get() or "")} - {None} or set(originals.values())
    if len(choices) == 1:
        return f"`mens up --base {shlex.quote(str(choices.pop()))}`"
    return "`mens up` (with --base NAME for a base of the catalogue; `mens base list` shows them)"
