"""Which programs supervisord has started again, by its log: its answers forget how one ended as soon as it runs again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ENDED = re.compile(r" exited: (\S+) \((.+); (?:not )?expected\)$")
STARTED = re.compile(r" spawned: '(\S+)' with pid \d+$")


class Restarts:
    """Follows a log of supervisord from where it ends now.

    Args:
        log: the file, which may still be missing.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read = log.stat().st_size if log.exists() else 0
        self._ended: dict[str, str] = {}

    def news(self) -> list[tuple[str, str]]:
        """Programs that were started again since the last call, each with how it ended, like "terminated by SIGKILL"."""
        if not self._log.exists():
            return []
        with self._log.open("rb") as file:
            if self._log.stat().st_size < self._read:  # supervisord has begun a new one
                self._read = 0
            file.seek(self._read)
            lines, _, _ = file.read().rpartition(b"\n")
        self._read += len(lines)
        return list(restarted(lines.decode(errors="replace").splitlines(), self._ended))


def restarted(lines: Iterable[str], ended: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Programs that lines of the log tell to have been started again, each with how it ended.

    Args:
        ended: how those ended that earlier lines leave ended; kept up to date.
    """
    for line in lines:
        if match := ENDED.search(line):
            ended[match[1]] = match[2]
        elif (match := STARTED.search(line)) and match[1] in ended:
            yield match[1], ended.pop(match[1])
