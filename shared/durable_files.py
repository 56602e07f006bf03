"""Files and folders that get their name only when their content is on disk, so that a power cut leaves the old one, or none."""

from __future__ import annotations

import os
from pathlib import Path


def write_durably(path: Path, text: str) -> None:
    """Write a file, or replace it, in one step: readers see the old content or all of the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The process id keeps two writers from sharing one temporary file.
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def rename_durably(folder: Path, target: Path) -> None:
    """Give a finished folder its name. As with any rename, the target must not exist, or be an empty folder."""
    # Otherwise the new name may reach the disk before the files do.
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)
    folder.rename(target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
