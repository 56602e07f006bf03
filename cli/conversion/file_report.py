"""Outcome of the lines of a converted file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from cli.conversion.outcomes import ConvertedMethod, RowOutcome

MAX_EXAMPLES = 5


class ConversionReport(msgspec.Struct):
    """Outcome of a file's lines: ``lines`` is ``kept`` + ``changed`` + ``dropped``.

    Attributes:
        changes, drops, notes: lines by rule; a line may have several changes and notes, and has one reason to be
            dropped.
        examples: the first lines of each change, drop and note.
        unused_keys: number of written rows, by key that is left out.
        schemas: schemas of rows that an installation would not accept, and why.
        forms, file_form: rows by their form, and the form of the file; empty for OpenAI's files.
        separator, stop: endings of the prompts and completions in a file of such pairs; removed if ``stripped``.
        refused: why the converted file was not written; empty when it was.
        columns: names of the file's columns or keys; empty for OpenAI's files.
    """

    source: str
    method: ConvertedMethod
    lines: int = 0
    kept: int = 0
    changed: int = 0
    dropped: int = 0
    rows: int = 0
    changes: Counter[str] = msgspec.field(default_factory=Counter)
    drops: Counter[str] = msgspec.field(default_factory=Counter)
    notes: Counter[str] = msgspec.field(default_factory=Counter)
    examples: dict[str, list[int]] = msgspec.field(default_factory=dict)
    schemas: dict[str, str] = msgspec.field(default_factory=dict)
    unused_keys: Counter[str] = msgspec.field(default_factory=Counter)
    forms: Counter[str] = msgspec.field(default_factory=Counter)
    file_form: str = ""
    separator: str = ""
    stop: str = ""
    stripped: bool = False
    output: str = ""
    refused: str = ""
    columns: list[str] = []

    def count(self, outcome: RowOutcome, lines: Sequence[int]) -> None:
        """Count lines of one outcome, by ascending number."""
        self.lines += len(lines)
        self.rows += len(lines) * len(outcome.rows)
        if outcome.reason:
            self.dropped += len(lines)
            self.drops[outcome.reason] += len(lines)
        elif outcome.changes:
            self.changed += len(lines)
        else:
            self.kept += len(lines)
        self.changes.update({str(change): len(lines) for change in outcome.changes})
        self.notes.update({str(note): len(lines) for note in outcome.notes})
        self.unused_keys.update(dict.fromkeys(outcome.unused_keys, len(lines)))
        self.schemas = outcome.schemas | self.schemas if outcome.schemas else self.schemas
        for name in filter(None, [outcome.reason, *outcome.changes, *outcome.notes]):
            earlier = self.examples.get(str(name), [])
            self.examples[str(name)] = sorted([*earlier, *lines[:MAX_EXAMPLES]])[:MAX_EXAMPLES]
