"""The Git repository of a folder: its commit, and the dates of its documents. Git runs as a child process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from corpus.units.files import TreeFile

SECONDS = 60
STALE_SECONDS = 90 * 24 * 3600
MAX_STALENESS = 3
_MARK = "\1"


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository at its current commit.

    Attributes:
        top: its root folder.
        changed: time of the last commit of each document, in seconds since 1970, by path relative to the root.
    """

    top: Path
    commit: str
    changed: Mapping[str, int] = field(default_factory=dict)

    def path_of(self, file: TreeFile) -> str:
        """Return the path of a file relative to the root."""
        return os.fsencode(file.path.relative_to(self.top).as_posix()).decode(errors="replace")

    def staleness(self, path: str) -> int:
        """Return 0 to 3: one for each 90 days between the last commits of a document and of its repository.

        Today's date is not used, because the same input would give different rows tomorrow.
        """
        if path not in self.changed:
            return 0
        return min(MAX_STALENESS, (max(self.changed.values()) - self.changed[path]) // STALE_SECONDS)


def find_repository(root: Path) -> Repository | None:
    """Return the repository of a file or folder; None without one, without Git, or if Git does not answer in time."""
    folder = root if root.is_dir() else root.parent
    top = _git(folder, "rev-parse", "--show-toplevel", "HEAD")
    if not top or top.count("\n") != 2:
        return None
    path, commit = top.splitlines()
    log = _git(Path(path), "log", f"--format={_MARK}%ct", "--name-only", "--no-renames", "--", "*.md") or ""
    head = _git(Path(path), "show", "--no-patch", "--format=%ct", "HEAD") or "0"
    changed = {"": int(head)}
    for entry in log.split(_MARK)[1:]:
        date, *names = entry.split("\n")
        for name in filter(None, names):
            changed.setdefault(name, int(date))
    return Repository(Path(path), commit, changed)


def _git(folder: Path, *arguments: str) -> str | None:
    # A hook's GIT_DIR would name another repository; the monitor is a program that the repository chooses.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-pager", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false", *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
