"""Folders of `.tools/` (git-ignored), each filled once: downloads of tests and benches, and files made from them."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = (ROOT / ".tools").resolve()


def fetched(name: str, fetch: Callable[[Path], None]) -> Path:
    """Return a folder of .tools/ that ``fetch`` fills: complete or absent. With several processes, one fills it and the
    others wait.
    """
    folder = TOOLS / name
    if not folder.exists():
        TOOLS.mkdir(exist_ok=True)
        with (TOOLS / f".{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                _fill(folder, fetch)
    return folder


def _fill(folder: Path, fetch: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory(dir=TOOLS) as partial:
        new = Path(partial, "new")
        new.mkdir()
        fetch(new)
        new.rename(folder)
