"""Programs that supervisord restarted, from its log: its API forgets how a program ended once it runs again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ENDED = re.compile(r" exited: (\S+) \((.+); (?:not )?expected\)$")
STARTED = re.compile(r" spawned: '(\S+)' with pid \d+$")


class RestartLog:
    """Follows supervisord's log from its current end.

    Args:
        log: the file, which may not exist yet.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = log.stat().st_size if log.exists() else 0
        self._ended: dict[str, str] = {}
        self._last: dict[str, str] = {}

    def read_new(self) -> list[tuple[str, str]]:
        """Return programs that were restarted since the last call, each with how it ended, such as "terminated by
        SIGKILL".
        """
        if not self._log.exists():
            return []
        with self._log.open("rb") as file:
            # A file that is shorter than the part already read is a new one, after a rotation.
            if self._log.stat().st_size < self._offset:
                self._offset = 0
            file.seek(self._offset)
            lines, _, _ = file.read().rpartition(b"\n")
        self._offset += len(lines)
        text = lines.decode(errors="replace").splitlines()
        self._last |= {match[1]: match[2] for line in text if (match := ENDED.search(line))}
        return list(find_restarts(text, self._ended))

    def last_end(self, program: str) -> str:
        """Return how a program ended the last time, such as "terminated by SIGKILL"; empty if it has not."""
        self.read_new()
        return self._last.get(program, "")


def find_restarts(lines: Iterable[str], ended: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the programs that were restarted according to lines of the log, each with how it ended.

    Args:
        ended: ends of programs that have not been started again, from earlier lines; updated here.
    """
    for line in lines:
        if match := ENDED.search(line):
            ended[match[1]] = match[2]
        elif (match := STARTED.search(line)) and match[1] in ended:
            yield match[1], ended.pop(match[1])
