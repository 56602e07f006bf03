"""The machine as seen by a process inside: its environment, and the files of Python's own that it may read."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import shared

ROOT = Path(shared.__file__).resolve().parent.parent
"""Folder of Mens' packages, readable only for the fork server; code inside the sandbox cannot read it."""

_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS")
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/usr/share/zoneinfo")
DEVICES = tuple(Path("/dev", name) for name in ("null", "zero", "urandom", "random"))


def environment() -> dict[str, str]:
    """Return the whole environment of the processes inside: equal everywhere, so that graders behave the same
    everywhere.
    """
    fixed = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return fixed | dict.fromkeys(_ONE_THREAD, "1")


def readable_paths() -> list[Path]:
    """Return the paths that an import may read: Python's library, installed packages and nltk's data, but no programs
    or settings.
    """
    paths = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    for prefix in (sys.prefix, sys.base_prefix):
        paths += [Path(prefix, "nltk_data"), Path(prefix, "share", "nltk_data"), Path(prefix, "lib", "nltk_data")]
        # The library that the interpreter is linked with, next to it.
        paths += Path(prefix, "lib").glob("libpython*.so*")
    data = (Path(folder, "nltk_data") for folder in ("/usr/share", "/usr/local/share"))
    return [path for path in dict.fromkeys([*paths, *data, *map(Path, _SYSTEM), *DEVICES]) if path.exists()]


def open_to_others(path: Path) -> bool:
    """Return whether every user of the machine may read a file, or list a folder."""
    resolved = path.resolve()
    return bool(resolved.stat().st_mode & 0o004) and all(folder.stat().st_mode & 0o001 for folder in resolved.parents)
