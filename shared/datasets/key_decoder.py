"""A decoder that learns a file's unused keys: most files have the same keys in every row.

``written_rows.translate`` reads a line three times to find them. Once a file's keys are known, a msgspec type with
these keys as fields, which is created at run time, decodes a line and finds its unused keys in one pass. The result is
the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import GenericAlias
from typing import Any

import msgspec

from shared.datasets.rows import Message, Record
from shared.datasets.written_rows import KEYS_THAT_REFUSE, Translated, says_something, translate, translate_tools

MAX_LEARNT_KEYS = 64
_NO_FIELD = re.compile(r'["\\\x00-\x1f]')
"""Characters that msgspec refuses in a field's name; a row with such a key is translated slowly."""
_ABSENT = msgspec.UNSET
_RAW = msgspec.Raw | msgspec.UnsetType


class KeyDecoder:
    """Translates the lines of one file.

    Attributes:
        row_keys: the known keys of rows; ``turn_keys`` are those of turns.
    """

    def __init__(self) -> None:
        self.row_keys: list[str] = []
        self.turn_keys: list[str] = []
        self._decode: Callable[[bytes], Any] | None = None

    def translate(self, line: bytes) -> Translated:
        """Translate a line as :func:`translate` does, with the same errors."""
        if self._decode is not None:
            try:
                return self._narrow(self._decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass  # an older form, another key, or an error that has to be explained
        translated = translate(line)
        self._learn(translated.all_keys)
        return translated

    def _learn(self, keys: set[str]) -> None:
        rows, turns = set(self.row_keys), set(self.turn_keys)
        for key in keys:
            name, is_turn = key.removeprefix("messages[]."), key.startswith("messages[].")
            if not _NO_FIELD.search(name) and (is_turn or name not in KEYS_THAT_REFUSE):
                (turns if is_turn else rows).add(name)
        grown = len(rows) + len(turns) > len(self.row_keys) + len(self.turn_keys)
        if not grown or len(rows) + len(turns) > MAX_LEARNT_KEYS:
            return
        self.row_keys, self.turn_keys = sorted(rows), sorted(turns)
        turn = _wider("WideMessage", Message, self.turn_keys)
        record = _wider("WideRecord", Record, self.row_keys, messages=GenericAlias(list, turn) | None)
        self._decode = msgspec.json.Decoder(record).decode

    def _narrow(self, wide: Any) -> Translated:
        fields = {name: getattr(wide, name) for name in Record.__struct_fields__}
        unused = set(_present_keys([wide], self.row_keys))
        if turns := wide.messages:
            fields["messages"] = [
                Message(
                    turn.role,
                    turn.content,
                    turn.name,
                    turn.tool_calls,
                    turn.tool_call_id,
                    turn.weight,
                    turn.reasoning_content,
                )
                for turn in turns
            ]
            unused.update(f"messages[].{key}" for key in _present_keys(turns, self.turn_keys))
        translated = Translated(Record(**fields), unused)
        translate_tools(translated)
        return translated


def _wider(name: str, base: type[msgspec.Struct], keys: list[str], **others: Any) -> type[msgspec.Struct]:
    """Derive a type with more fields, whose values are not decoded."""
    extra = [(f"unused_{index}", _RAW, _ABSENT) for index in range(len(keys))]
    replaced = [(field, kind, None) for field, kind in others.items()]
    names = {f"unused_{index}": key for index, key in enumerate(keys)}
    return msgspec.defstruct(
        name, [*replaced, *extra], bases=(base,), rename=names, frozen=True, gc=False, forbid_unknown_fields=True
    )


def _present_keys(values: list[Any], keys: list[str]) -> Iterator[str]:
    """Yield the keys that have a value in at least one of the objects; most have one in the first."""
    for index, key in enumerate(keys):
        name = f"unused_{index}"
        for value in values:
            raw = getattr(value, name)
            if raw is not _ABSENT and says_something(raw):
                yield key
                break
