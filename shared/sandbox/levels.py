"""What a sandbox is made of on this machine, what it allows, and what a probe has found of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Level = Literal["bubblewrap", "landlock"]
LEVELS: tuple[Level, ...] = ("bubblewrap", "landlock")
"""The stronger one first."""
Choice = Literal["auto", "bubblewrap", "landlock", "off"]

MAX_SOURCE_BYTES = 256_000
MAX_OUTPUT_BYTES = 65_536
COMPILE_SECONDS = 30.0


def weakest(levels: Iterable[Level | None]) -> Level | None:
    """What can be said of code that ran at several levels; None where none ran."""
    return max(filter(None, levels), key=LEVELS.index, default=None)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one item may take.

    Attributes:
        wall_seconds: of each item; processor time likewise.
        memory_bytes: of address space, libraries included.
        file_bytes: of one file; files may take ``files`` times as much together.
        files: open at once.
        threads: of one item, where they are counted for it alone; else none can be started.
        tmpfs_bytes: of the files of all items that run at once in a sandbox, at the level bubblewrap, where they are memory: each item has
            an equal part to itself.
    """

    wall_seconds: float = 120.0
    memory_bytes: int = 2 << 30
    file_bytes: int = 16 << 20
    files: int = 64
    threads: int = 64
    tmpfs_bytes: int = 1 << 30

    @property
    def folder_bytes(self) -> int:
        """What all files of an item may take together."""
        return self.file_bytes * self.files


@dataclass(frozen=True, slots=True)
class Attack:
    """One attempt to break out, and what became of it."""

    name: str
    held: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SandboxReport:
    """What a probe has found; a receipt names it.

    Attributes:
        level: what code runs in; None when nothing here contains it.
        reasons: of each level that was looked at and not taken: why.
        attacks: what was tried at the level that was taken.
    """

    level: Level | None
    reasons: dict[str, str] = field(default_factory=dict)
    attacks: tuple[Attack, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    @property
    def statement(self) -> str:
        """One sentence: the level, or why there is none."""
        if self.level:
            return f"{self.level}: {len(self.attacks)} attacks were tried and held"
        return "none: " + "; ".join(f"{name}: {reason}" for name, reason in self.reasons.items())
