"""Levels of a sandbox on this machine, limits of its items, and the result of a probe."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Level = Literal["bubblewrap", "landlock"]
LEVELS: tuple[Level, ...] = ("bubblewrap", "landlock")
"""Levels, the strongest first."""
Choice = Literal["auto", "bubblewrap", "landlock", "off"]

MAX_SOURCE_BYTES = 256_000
MAX_OUTPUT_BYTES = 65_536
COMPILE_SECONDS = 30.0


def weakest(levels: Iterable[Level | None]) -> Level | None:
    """Return the weakest of the levels at which code ran; None if none ran."""
    return max(filter(None, levels), key=LEVELS.index, default=None)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one item.

    Attributes:
        wall_seconds: time limit of each item in seconds; its processor time has the same limit.
        memory_bytes: bytes of address space, libraries included.
        file_bytes: size of one file; files may take ``files`` times as much together.
        files: number of files that may be open at once.
        threads: number of threads of one item, if they are counted for it alone; else it cannot start any.
        tmpfs_bytes: size of the files of all items that run at once in a sandbox, at the level bubblewrap, where files are
            memory: each item has an equal part of its own.
    """

    wall_seconds: float = 120.0
    memory_bytes: int = 2 << 30
    file_bytes: int = 16 << 20
    files: int = 64
    threads: int = 64
    tmpfs_bytes: int = 1 << 30

    @property
    def folder_bytes(self) -> int:
        """Limit of all files of an item together."""
        return self.file_bytes * self.files


@dataclass(frozen=True, slots=True)
class Attack:
    """One attempt to break out, with its outcome."""

    name: str
    held: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SandboxReport:
    """Result of a probe; a receipt names it.

    Attributes:
        level: level that code runs at; None when no level here can confine it.
        reasons: reason for each level that was tried and rejected.
        attacks: attacks that were tried at the accepted level.
    """

    level: Level | None
    reasons: dict[str, str] = field(default_factory=dict)
    attacks: tuple[Attack, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    @property
    def statement(self) -> str:
        """One sentence: the level, or why no level is available."""
        if self.level:
            return f"{self.level}: {len(self.attacks)} attacks were tried and stopped"
        return "none: " + "; ".join(f"{name}: {reason}" for name, reason in self.reasons.items())
