"""A row of another program while it is read: which keys are in the chat, and which are left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from cli.conversion.outcomes import Dropped, Row, RowChange, RowOutcome
from shared.datasets.forms.flags import FLAGS
from shared.datasets.forms.recognition import ROLES
from shared.datasets.rows import RowCode

FLAG_KEYS = frozenset(("weight", *FLAGS))
"""Keys of a turn that say whether to train on it."""
EMPTY: tuple[Any, ...] = (None, "", [], {})
"""Values of a key without content."""


@dataclass(frozen=True, slots=True)
class Tags:
    """Names that a program gives to the parts of a turn.

    Attributes:
        speaker, utterance: keys of a turn; empty: the usual ones.
        roles: Mens' roles by lower-case speaker names.
    """

    speaker: str = ""
    utterance: str = ""
    roles: Mapping[str, str] = field(default_factory=lambda: ROLES)


@dataclass(slots=True)
class Reading:
    """A row while it is read.

    Attributes:
        row: the original row, by lower-case key.
        used: keys whose value is in the chat.
        outcome: receives the changes.
        calls, open_calls: number of calls so far, and ids of those without a result.
        left_out: keys of parts that are counted as unused.
    """

    row: Row
    tags: Tags
    outcome: RowOutcome
    used: set[str] = field(default_factory=set)
    calls: int = 0
    open_calls: list[str] = field(default_factory=list)
    left_out: set[str] = field(default_factory=set)

    def take(self, *names: str) -> Any:
        """Return the value of the first key that has one, and mark the key as used."""
        for name in names:
            if self.row.get(name) not in EMPTY:
                self.used.add(name)
                return self.row[name]
        return None

    def take_text(self, *names: str) -> str:
        """Return the value of the first key that has one as a string, and mark the key as used; empty if none has a
        value.

        Raises:
            Dropped: ``ROW_FIELD_TYPE``.
        """
        value = self.take(*names)
        if isinstance(value, int | float) and not isinstance(value, bool):
            self.outcome.change(RowChange.NUMBER_TO_TEXT)
            return str(value)
        if value is not None and not isinstance(value, str):
            raise Dropped(RowCode.ROW_FIELD_TYPE)
        return value or ""

    def leave_out(self, place: str, written: Mapping[str, Any], read_keys: Collection[str | None]) -> None:
        """Count a part's keys that are not known among the keys that are left out."""
        for key, value in written.items():
            name = f"{place}.{key}"
            if key not in read_keys and value not in EMPTY and name not in self.left_out:
                self.left_out.add(name)
                self.outcome.unused_keys.append(name)
