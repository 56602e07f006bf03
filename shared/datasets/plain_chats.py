"""Reads plain chats, a block of lines at a time: most files have nothing else, and reading single lines would be slow.

A plain chat has ``messages`` with a role and a content each, labels, and keys that a :class:`KeyDecoder` has learned. A
block is accepted if every line of it is a plain chat; the decoder's types then check all but two rules. The lines of
any other block are read one by one (``reader.read_records``), with the same result.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import attrgetter
from types import GenericAlias
from typing import Annotated, Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.datasets.dataset_report import DatasetReport, Quarantine
from shared.datasets.fingerprints import places
from shared.datasets.key_decoder import KeyDecoder
from shared.datasets.reader import READ_BYTES, read_records
from shared.datasets.row_validation import FAILURES, MAX_LINE_BYTES
from shared.datasets.rows import Labels, Record, Role
from shared.datasets.written_rows import says_something

BLOCK_BYTES, MAX_BLOCKS = 1 << 19, 8
Records = Iterator[tuple[int, Record]]
_KeyPresence = tuple[str, NDArray[np.bool_]]
"""A key's name, and for each row whether it has a value there."""
_ABSENT = msgspec.Raw(b"")
_SAYS_SOMETHING = len(b"null")
"""A raw value is taken to have content if it is longer than this."""
_NEWLINE, _OPENS, _CLOSES = b"\n{}"


class PlainTurn(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A turn of role and content; turns with thoughts are left to the slow path."""

    role: Role
    content: Annotated[str, msgspec.Meta(min_length=1)]
    reasoning_content: None = None
    reasoning: None = None
    thinking: None = None


class PlainChat(Labels, frozen=True, gc=False, forbid_unknown_fields=True, kw_only=True):
    """A line with labels and such turns; lines with spans are left to the slow path."""

    messages: list[PlainTurn]
    syntax_spans: None = None


@dataclass(frozen=True, slots=True)
class PlainBlock:
    """The chats of some lines, one per line, and their turns in one list.

    Attributes:
        first_line: its number in the file.
        turns: how many each chat has.
        unused: number of rows for each unused key, in the order in which the keys first occur.
    """

    first_line: int
    chats: list[PlainChat]
    roles: list[str]
    contents: list[str]
    turns: list[int]
    unused: list[tuple[str, int]] = field(default_factory=list)


def read_blocks(
    file: BinaryIO, report: DatasetReport, quarantine: Quarantine | None = None, first_line: int = 1
) -> Iterator[PlainBlock | Records]:
    """Read the valid rows of a file in blocks; count the other lines, and unused keys, in ``report``.

    Args:
        first_line: number of the file's first line, if it is a later part of another.

    Yields:
        The plain chats of some lines, or their iterator of :func:`read_records`; exhaust it before the next block.
    """
    keys = KeyDecoder()
    plain = PlainDecoder(keys)
    size = BLOCK_BYTES
    while block := file.read(size):
        is_cut = False
        if not block.endswith(b"\n"):
            rest = file.readline(READ_BYTES)
            is_cut = len(rest) == READ_BYTES and not rest.endswith(b"\n")
            block += rest
        if chats := plain.decode(block, first_line):
            for key, rows in chats.unused:
                report.add_unused([key], rows)
            yield chats
            first_line += len(chats.chats)
            # If only a small part of each line is content, a block has more lines, to fill the arrays for fingerprints.
            size = BLOCK_BYTES * min(MAX_BLOCKS, max(1, len(block) // sum(map(len, chats.contents))))
        else:
            yield read_records(io.BytesIO(block), report, quarantine, first_line, keys)
            first_line += block.count(b"\n") + (not block.endswith(b"\n"))
        if is_cut:  # a line over the limit, which is refused by its first bytes
            next((rest for rest in iter(partial(file.readline, READ_BYTES), b"") if rest.endswith(b"\n")), None)


class PlainDecoder:
    """Decodes the blocks of one file.

    Args:
        keys: the file's unused keys that are known so far.
    """

    def __init__(self, keys: KeyDecoder) -> None:
        self._keys = keys
        self._row_keys: list[str] = []
        self._turn_keys: list[str] = []
        self._decode: Callable[[bytes], list[Any]] = msgspec.json.Decoder(PlainChat).decode_lines

    def decode(self, block: bytes, first_line: int) -> PlainBlock | None:
        """Decode the chats of a block of whole lines; None unless every line is a plain chat."""
        if not (lines := _objects(block)):
            return None
        self._learn()
        try:
            chats = self._decode(block)
        except FAILURES:
            return None
        if len(chats) != lines:
            return None
        talks = [chat.messages for chat in chats]
        if not all(talks):
            return None
        turns = list(chain.from_iterable(talks))
        contents = [turn.content for turn in turns]
        if True in map(str.isspace, contents) or {talk[-1].role for talk in talks} != {"assistant"}:
            return None
        counts = list(map(len, talks))
        keys = self._present_keys(chats, turns, counts) if self._row_keys or self._turn_keys else []
        return PlainBlock(first_line, chats, [turn.role for turn in turns], contents, counts, _in_order(keys))

    def _learn(self) -> None:
        """Take over the keys that were learned since the last block."""
        if (self._row_keys, self._turn_keys) == (self._keys.row_keys, self._keys.turn_keys):
            return
        self._row_keys, self._turn_keys = self._keys.row_keys, self._keys.turn_keys
        turn = _wider("WidePlainTurn", PlainTurn, self._turn_keys)
        chat = _wider("WidePlainChat", PlainChat, self._row_keys, ("messages", GenericAlias(list, turn)))
        self._decode = msgspec.json.Decoder(chat).decode_lines

    def _present_keys(self, chats: list[Any], turns: list[Any], counts: list[int]) -> list[_KeyPresence]:
        """Return the learned keys, each with the rows in which it has a value."""
        begins = np.cumsum([0, *counts[:-1]])
        first_turns = [turns[begin] for begin in begins.tolist()]
        keys = []
        for index, key in enumerate(self._row_keys):
            keys.append((key, _saying(chats, index)))
        for index, key in enumerate(self._turn_keys):
            has_value = _saying(first_turns, index)
            if not has_value.all():
                has_value = np.logical_or.reduceat(_saying(turns, index), begins)
            keys.append((f"messages[].{key}", has_value))
        return keys


def _wider(name: str, base: type[msgspec.Struct], keys: list[str], *others: tuple[str, Any]) -> type[msgspec.Struct]:
    """Derive a type with more fields, whose values are not decoded."""
    extra = [(f"unused_{index}", msgspec.Raw, _ABSENT) for index in range(len(keys))]
    names = {f"unused_{index}": key for index, key in enumerate(keys)}
    return msgspec.defstruct(
        name,
        [*others, *extra],
        bases=(base,),
        rename=names,
        frozen=True,
        gc=False,
        forbid_unknown_fields=True,
        kw_only=True,
    )


def _saying(values: Iterable[Any], index: int) -> NDArray[np.bool_]:
    """Return, for each row or turn, whether its key of that number has a value."""
    raw = list(map(attrgetter(f"unused_{index}"), values))
    sizes = np.array(list(map(len, raw)))
    has_value: NDArray[np.bool_] = sizes > _SAYS_SOMETHING
    for short in np.flatnonzero(~has_value & (sizes > 0)).tolist():
        has_value[short] = says_something(raw[short])
    return has_value


def _in_order(keys: list[_KeyPresence]) -> list[tuple[str, int]]:
    """Count rows by unused key, ordered by the first such row, and within a row by name."""
    first_rows = [
        (int(has_value.argmax()), name, int(np.count_nonzero(has_value))) for name, has_value in keys if has_value.any()
    ]
    return [(name, rows) for _, name, rows in sorted(first_rows)]


def _objects(block: bytes) -> int:
    """Return the number of lines if each of them begins and ends like an object and none is too long; otherwise 0.

    If the block then decodes into as many values, each line has exactly one: a line end between ``}`` and ``{`` cannot
    be inside a value, so every value ends with its line.
    """
    data = np.frombuffer(block, np.uint8)
    ends = places(data == _NEWLINE)
    if not block.endswith(b"\n"):
        ends = np.append(ends, len(data))
    begins = np.concatenate(([0], ends[:-1] + 1))
    sound = (data[begins] == _OPENS) & (data[ends - 1] == _CLOSES) & (ends - begins <= MAX_LINE_BYTES)
    return len(ends) if sound.all() else 0
