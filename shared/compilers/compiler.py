"""Definition of a compiler, and this machine's compilers: gcc and g++ if installed, and those of installed packages."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path

from shared.errors import Code, Unavailable

GROUP = "mens.compilers"
"""Entry point group for other packages: each language's name stands for a callable without parameters that returns a
compiler.
"""
LANGUAGE = re.compile(r"^[a-z0-9][a-z0-9_+#-]{0,31}$")
_OF_GCC = ("/usr/lib/gcc", "/usr/libexec/gcc", "/usr/include", "/usr/local/include")


@dataclass(frozen=True, slots=True)
class Compiler:
    """A program whose exit code says whether its input is valid code: 0 when it is.

    Attributes:
        command: the program's absolute path, and its arguments. It runs in a folder that holds only the code.
        file: the code's file name there, as the arguments name it.
        folders: folders of this machine that it needs besides the C library: its further programs, its headers. They
            are bound read-only, and files in them may be executed; nothing else may.
        variables: variables of its environment, besides the few that every process inside has: for example where its libraries
            are, because no program inside can find its own folder through ``/proc``.
    """

    command: tuple[str, ...]
    file: str
    folders: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.command or not all(path.startswith("/") for path in (self.command[0], *self.folders)):
            raise ValueError("a compiler's program and folders must be absolute paths")
        if Path(self.file).name != self.file or self.file in {"", ".", ".."}:
            raise ValueError("a compiler's file must be a name without a folder")

    @property
    def executables(self) -> list[Path]:
        """The existing paths of the program, the links that lead to it, and the folders."""
        paths = [Path(self.command[0])]
        while paths[-1].is_symlink():
            paths.append(paths[-1].parent / paths[-1].readlink())
        paths += [paths[-1].resolve(), *map(Path, self.folders)]
        return [path for path in dict.fromkeys(paths) if path.exists()]


def find_compiler(language: str) -> Compiler | None:
    """Return the compiler of a language; None if this machine has none.

    Raises:
        Unavailable: ``CHECKER_FAILED``: a package offers a compiler that cannot be created.
    """
    return _compiler(language, tuple(sys.path)) if LANGUAGE.match(language) else None


@lru_cache(maxsize=64)
def _compiler(language: str, _search_path: tuple[str, ...]) -> Compiler | None:
    """Find a compiler; cached for all grades, so a compiler that is installed later is found only after a restart."""
    if language in _OWN:
        return _OWN[language]()
    point = next(iter(entry_points(group=GROUP, name=language)), None)
    if point is None:
        return None
    try:
        made = point.load()()
    except Exception as error:
        # Code of another package may raise anything.
        raise _failed(language, f"{type(error).__name__}: {error}") from None
    if not isinstance(made, Compiler):
        raise _failed(language, f"its package returns a {type(made).__name__}, not a Compiler")
    return made


def _failed(language: str, reason: str) -> Unavailable:
    message = f"The compiler of {language} cannot be created: {reason}"
    return Unavailable(Code.CHECKER_FAILED, message, remedy="Report it to the maintainers of its package.")


def _gcc(program: str, file: str) -> Callable[[], Compiler | None]:
    def make() -> Compiler | None:
        path = shutil.which(program)
        return Compiler((path, "-fsyntax-only", file), file, _OF_GCC) if path else None

    return make


_OWN: dict[str, Callable[[], Compiler | None]] = {"c": _gcc("gcc", "main.c"), "c++": _gcc("g++", "main.cc")}
