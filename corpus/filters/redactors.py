"""Redactors, which remove personal data from texts before they are written: those of Mens, and those of installed
packages.
"""

from __future__ import annotations

import re
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import NamedTuple, Protocol

from corpus.filters.personal_data import PatternRedactor
from corpus.filters.redacted import Redacted
from corpus.filters.rules import RedactionRules
from shared.errors import Code, InvalidRequest, MensError
from shared.hashing import digest_file

GROUP = "mens.redactors"
"""Entry point group for other packages: each name stands for a callable that takes the corpus key (bytes) and returns a
redactor.
"""
PATTERNS = "patterns"
NAME = re.compile(r"^[a-z][a-z0-9_-]{0,31}$")


class Redactor(Protocol):
    """Replaces personal data in texts. It is called with many texts at a time, from one thread."""

    def redact(self, texts: list[str]) -> list[Redacted]:
        """Return each text without personal data, in the same order."""
        ...


class RedactedTexts(NamedTuple):
    """Texts after all redactors, and for each changed text the number of replacements by kind."""

    texts: list[str]
    counts: dict[int, Counter[str]]


class Redactors:
    """Redactors of a source, one after the other.

    Args:
        names: ``patterns``, the name of an installed package's redactor, or the path of a file of rules.
        key: key of the placeholders; None generates a random one, so that the placeholders of two runs differ.
        folder: folder that paths of rules are relative to.

    Attributes:
        digests: SHA-256 of each file of rules, by its name.

    Raises:
        InvalidRequest: ``CORPUS_REDACTOR_UNKNOWN``.
    """

    def __init__(self, names: Sequence[str], key: bytes | None = None, folder: Path = Path()) -> None:
        self.names = tuple(names)
        key = key or secrets.token_bytes(32)
        self._redactors = [(name, _load(name, key, folder)) for name in names]
        self.digests = rules_digests(names, folder)

    def redact(self, texts: list[str]) -> RedactedTexts:
        """Return texts without personal data.

        Raises:
            MensError: ``CORPUS_REDACTOR_FAILED``: a redactor raised an error, or did not return one result per text.
                The message quotes none of the texts.
        """
        counts: dict[int, Counter[str]] = {}
        for name, redactor in self._redactors:
            results = _call(name, redactor, texts)
            for number, result in enumerate(results):
                if result.counts:
                    counts.setdefault(number, Counter()).update(result.counts)
            texts = [result.text for result in results]
        return RedactedTexts(texts, counts)


def rules_digests(names: Sequence[str], folder: Path) -> dict[str, str]:
    """Return SHA-256 of each file of rules among the names of redactors.

    Raises:
        InvalidRequest: ``CORPUS_REDACTOR_UNKNOWN``: a file is missing.
    """
    return {name: digest_file(_rules_file(folder / name)) for name in names if not NAME.match(name)}


def installed_redactors() -> list[str]:
    """Names that a source's `redact` accepts, apart from files of rules."""
    return sorted({PATTERNS, *(point.name for point in entry_points(group=GROUP))})


def _load(name: str, key: bytes, folder: Path) -> Redactor:
    if name == PATTERNS:
        return PatternRedactor(key)
    if not NAME.match(name):
        return RedactionRules(_rules_file(folder / name))
    if point := _entry_point(name, tuple(sys.path)):
        make: Callable[[bytes], Redactor] = point.load()
        return make(key)
    message = f"The redactor {name!r} is not installed; the installed ones are: {', '.join(installed_redactors())}."
    remedy = f"Install a package with an entry point `{GROUP}` of this name, or name a file of rules: ./{name}.rules."
    raise InvalidRequest(Code.CORPUS_REDACTOR_UNKNOWN, message, remedy=remedy, param="redact")


def _rules_file(path: Path) -> Path:
    if not path.is_file():
        message = f"The file of redaction rules {path} does not exist."
        remedy = f"Name a file with lines EXPRESSION => REPLACEMENT, or a redactor: {', '.join(installed_redactors())}."
        raise InvalidRequest(Code.CORPUS_REDACTOR_UNKNOWN, message, remedy=remedy, param="redact")
    return path


@lru_cache(maxsize=16)
def _entry_point(name: str, _search_path: tuple[str, ...]) -> EntryPoint | None:
    return next(iter(entry_points(group=GROUP, name=name)), None)


def _call(name: str, redactor: Redactor, texts: list[str]) -> list[Redacted]:
    # Another package's code may raise anything, and its message may quote the text: neither may reach a log.
    try:
        results = redactor.redact(texts)
    except Exception as error:
        raise _failure(name, f"it raised {type(error).__name__}") from None
    if len(results) != len(texts):
        raise _failure(name, f"it returned {len(results)} results for {len(texts)} texts")
    return results


def _failure(name: str, reason: str) -> MensError:
    message = f"The redactor {name!r} failed: {reason}. Nothing was written."
    return MensError(Code.CORPUS_REDACTOR_FAILED, message, remedy="Fix or update the redactor's package.")
