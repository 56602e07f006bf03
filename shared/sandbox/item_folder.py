"""The folder of an item: checks the number and size of its files, and removes it. Its content is hostile."""

from __future__ import annotations

import os
from pathlib import Path

from shared.sandbox.levels import Limits

MAX_FILES_IN_FOLDER = 1024
MAX_FOLDER_DEPTH = 32


def is_over(folder: Path, limits: Limits) -> bool:
    """Return whether files exceed their limit, or whether measuring them would take too long, by their number or depth."""
    size, count, folders = 0, 0, [os.fspath(folder)]
    while folders:
        path = folders.pop()
        if path.count("/") > MAX_FOLDER_DEPTH:
            return True
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    count += 1
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    if count > MAX_FILES_IN_FOLDER or size > limits.folder_bytes:
                        return True
        except OSError:
            # It was removed meanwhile.
            continue
    return False


def empty(folder: Path) -> None:
    """Remove all contents of a folder, however deep; it enters one folder at a time, because a path can be too long."""
    os.chdir(folder)
    depth: list[str] = []
    while True:
        with os.scandir() as entries:
            members = list(entries)
        inner = next((entry.name for entry in members if entry.is_dir(follow_symlinks=False)), None)
        for entry in members:
            if not entry.is_dir(follow_symlinks=False):
                Path(entry.name).unlink()
        if inner is not None:
            os.chdir(inner)
            depth.append(inner)
        elif depth:
            os.chdir("..")
            Path(depth.pop()).rmdir()
        else:
            return
