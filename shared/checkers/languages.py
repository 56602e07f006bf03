"""Languages that have a checker: those of this package, and those of installed packages."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from shared.checkers.checker import Checker
from shared.errors import Code, InvalidRequest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

GROUP = "mens.checkers"
"""Entry point group for other packages: each language's name stands for a callable without parameters that returns a
checker.
"""
LANGUAGE = re.compile(r"^[a-z0-9][a-z0-9_+#-]{0,31}$")


def installed_languages() -> list[str]:
    """Return the names of the languages that :func:`load_checker` finds."""
    return sorted({*filter(_is_usable, _OWN), *(point.name for point in _entry_points())})


def is_checked(language: str) -> bool:
    """Return whether a language has a checker."""
    # Other packages are searched only for languages that are not our own, because that takes a tenth of a second.
    return _is_usable(language) or _entry_point(language) is not None


def require_language(language: str) -> None:
    """Raise an error unless a language has a checker.

    Raises:
        InvalidRequest: ``CHECKER_NOT_FOUND``.
    """
    if is_checked(language):
        return
    message = f"No checker is installed for {language[:80]!r}; installed are: {', '.join(installed_languages())}."
    remedy = "Install a package with an entry point `mens.checkers` of this name, on every machine that checks."
    if language == "python-types":
        remedy = "Install mypy where answers are checked, or check `python`."
    raise InvalidRequest(Code.CHECKER_NOT_FOUND, message, remedy=remedy, param="language")


def load_checker(language: str) -> Checker:
    """Return the checker of a language.

    Raises:
        InvalidRequest: as :func:`require_language`.
    """
    require_language(language)
    if language in _OWN:
        return _OWN[language]()
    point = _entry_point(language)
    assert point
    checker: Checker = point.load()()
    return checker


def construct_kinds(language: str) -> frozenset[str]:
    """Return all kinds of construct that the checker of a language distinguishes; empty if it does not list them.

    Raises:
        InvalidRequest: as :func:`require_language`.
    """
    return frozenset(getattr(load_checker(language), "kinds", ()))


def _entry_point(language: str) -> EntryPoint | None:
    return _found_entry_point(language, tuple(sys.path)) if LANGUAGE.match(language) else None


@lru_cache(maxsize=64)
def _found_entry_point(language: str, _search_path: tuple[str, ...]) -> EntryPoint | None:
    """Find an entry point; cached for all grades, so a package that is installed later is found only after a restart."""
    return next((point for point in _entry_points() if point.name == language), None)


def _entry_points() -> EntryPoints:
    # Imported only when needed, because the import takes a third of the start of a process that checks our own
    # languages.
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


def _is_usable(language: str) -> bool:
    return language in _OWN and (language != "python-types" or find_spec("mypy") is not None)


# Each is imported when needed: a process that checks JSON does not load pyflakes.
def _python() -> Checker:
    from shared.checkers.python_checker import PythonChecker

    return PythonChecker()


def _typed_python() -> Checker:
    from shared.checkers.python_checker import TypedPythonChecker

    return TypedPythonChecker()


def _json() -> Checker:
    from shared.checkers.data_checkers import JsonChecker

    return JsonChecker()


def _sql() -> Checker:
    from shared.checkers.data_checkers import SqlChecker

    return SqlChecker()


_OWN: dict[str, Callable[[], Checker]] = {
    "python": _python, "python-types": _typed_python, "json": _json, "sql": _sql,
}  # fmt: skip
