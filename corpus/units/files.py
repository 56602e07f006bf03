"""Files of source trees, in an order that does not depend on the machine. Links are not followed, and third-party files
are left out.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from corpus.units.records import LeftOut
from shared.checkers.contained import MAX_CHARACTERS
from shared.errors import Code, NotFound
from shared.hashing import digest_stream

VENDORED = frozenset((
    "node_modules", "vendor", "vendored", "_vendor", "third_party", "third-party", "site-packages", "dist-packages", "venv",
))  # fmt: skip
"""Folders with files of other projects. Folders whose name begins with a period are not read either."""
MINIFIED_MEAN = 120
"""Mean line length above which a file is taken to be machine-written."""
_HEAD_CHARACTERS = 4_000
_GENERATED = re.compile(r"^[ \t]*(?:#|//|--|/?\*+|<!--|;).*(?:@generated|DO NOT EDIT)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TreeFile:
    """A file that may have units.

    Attributes:
        name: its path for display, with forward slashes.
        root: the named folder or file through which it was found.
    """

    path: Path
    name: str
    root: Path


def find_files(roots: Sequence[Path], suffixes: tuple[str, ...], left_out: Counter[LeftOut]) -> list[TreeFile]:
    """Return the files with one of the suffixes, sorted by name; a file that is named twice is returned once.

    Args:
        left_out: receives the counts of what is left out.

    Raises:
        NotFound: ``CORPUS_SOURCE_MISSING``.
    """
    files: dict[Path, TreeFile] = {}
    for root in roots:
        if not root.exists():
            message, remedy = f"{root} does not exist.", "Name a folder or a file that exists."
            raise NotFound(Code.CORPUS_SOURCE_MISSING, message, remedy=remedy, param=str(root))
        # A root may be a link: it was named by the caller, and not by the tree.
        whole = root.resolve()
        paths = _walk(whole, left_out) if whole.is_dir() else iter([whole])
        for path in paths:
            if path.name.endswith(suffixes):
                relative = path.relative_to(whole.parent)
                files.setdefault(path, TreeFile(path, _printable(relative), whole))
    return sorted(files.values(), key=lambda file: os.fsencode(file.path))


def read_source(file: TreeFile) -> str | LeftOut:
    """Return a file's text, or the reason why it is left out."""
    try:
        with _open_regular(file.path) as opened:
            # A character has at most four bytes. A larger file is not read to its end.
            content = opened.read(4 * MAX_CHARACTERS + 1)
    except _NotAFileError:
        return LeftOut.NOT_A_FILE
    except OSError:
        return LeftOut.UNREADABLE
    if len(content) > 4 * MAX_CHARACTERS:
        return LeftOut.TOO_LONG
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return LeftOut.NOT_UTF8
    return _refusal(text) or text.replace("\r\n", "\n").replace("\r", "\n")


def digest_source(file: TreeFile) -> str:
    """Return the SHA-256 of a file's bytes; empty for a file that is not read."""
    try:
        with _open_regular(file.path) as opened:
            return digest_stream(opened)
    except OSError:
        return ""


class _NotAFileError(OSError):
    """A pipe, a device or a socket."""


def _open_regular(path: Path) -> BinaryIO:
    # Without O_NONBLOCK, opening a pipe would block.
    # And without O_NOFOLLOW, a link that replaced the file meanwhile would lead out of the tree.
    opened = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb")
    if stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        return opened
    opened.close()
    raise _NotAFileError


def _refusal(text: str) -> LeftOut | None:
    if not text.strip():
        return LeftOut.EMPTY
    if len(text) > MAX_CHARACTERS:
        return LeftOut.TOO_LONG
    if _GENERATED.search(text[:_HEAD_CHARACTERS]):
        return LeftOut.GENERATED
    return None


def is_minified(text: str) -> bool:
    """Return whether lines of code are too long to have been written by a person; prose is exempt."""
    lines = text.split("\n")
    if max(map(len, lines)) <= MINIFIED_MEAN:
        return False
    lines = [line for line in lines if line.strip()]
    return bool(lines) and sum(map(len, lines)) / len(lines) > MINIFIED_MEAN


def is_test_file(name: str) -> bool:
    """Return whether a file has tests, by its name or its folder."""
    folders, _, base = name.rpartition("/")
    return base.startswith("test_") or base.endswith("_test.py") or "tests" in folders.split("/")


def _walk(root: Path, left_out: Counter[LeftOut]) -> Iterator[Path]:
    def note(_error: OSError) -> None:
        left_out[LeftOut.UNREADABLE] += 1

    for folder, names, files in os.walk(root, onerror=note):
        kept = []
        for name in sorted(names):
            if name in VENDORED:
                left_out[LeftOut.VENDORED_FOLDER] += 1
            elif Path(folder, name).is_symlink():
                left_out[LeftOut.SYMLINK] += 1
            elif not name.startswith(".") and name != "__pycache__":
                kept.append(name)
        names[:] = kept
        for name in sorted(files):
            path = Path(folder, name)
            if path.is_symlink():
                left_out[LeftOut.SYMLINK] += 1
            else:
                yield path


def _printable(path: Path) -> str:
    """Return a path as valid Unicode, even if its names contain invalid bytes."""
    return os.fsencode(path.as_posix()).decode(errors="replace")
