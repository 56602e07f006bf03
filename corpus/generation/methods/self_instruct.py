"""Method ``self_instruct``: a new instruction, prompted with six examples by people and two generated earlier.

Source: Wang et al., "Self-Instruct" (2023): six and two examples, and ROUGE-L under 0.7 with every other instruction.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from rapidfuzz.distance import LCSseq

from corpus.generation.asking import RowDropped
from corpus.generation.methods.method import RowRequests
from corpus.generation.model_columns import SelfInstructColumn
from corpus.verdicts import VerdictCode

OF_PEOPLE, MADE = 6, 2
LEAST_SIMILAR = 0.7
"""ROUGE-L at or above which an instruction does not count as new."""
ROUND = 20
"""Number of rows per round. New instructions become examples only after a round, so that the rows of a round can be
made concurrently, in any order.
"""
_ASK = (
    "Here are examples of instructions:\n\n{examples}\n\nWrite one more instruction, number {number}{about}. It must "
    "differ from all of them. Reply with the instruction alone."
)
_NUMBER = re.compile(r"^\s*(?:\d{1,3}[.):]|[-*])\s+")


class InstructionPool:
    """The instructions of a column: those written by people, and those generated.

    Args:
        seeds: instructions written by people.
    """

    def __init__(self, seeds: Sequence[str]) -> None:
        self._seeds = list(seeds)
        self._made: list[str] = []
        self._examples = 0
        self._words = [_words(text) for text in seeds]

    def begin_round(self) -> None:
        """Make the instructions generated so far available as examples."""
        self._examples = len(self._made)

    def examples(self, key: str) -> list[str]:
        """Return the examples for a row; they depend only on its key, the seeds and the earlier rounds."""
        made = _drawn(self._made[: self._examples], MADE, key)
        return _drawn(self._seeds, OF_PEOPLE, key) + made

    def is_new(self, text: str, *, in_round: bool) -> bool:
        """Return whether an instruction differs from all others.

        Args:
            in_round: whether it is also compared with those of its own round; only valid when rows are processed in
                order.
        """
        words = _words(text)
        count = len(self._words) if in_round else len(self._seeds) + self._examples
        return bool(words) and all(_rouge_l(words, other) < LEAST_SIMILAR for other in self._words[:count])

    def add(self, text: str) -> None:
        """Add a generated instruction."""
        self._made.append(text)
        self._words.append(_words(text))


def self_instruct(column: SelfInstructColumn, row: RowRequests) -> str:
    """Return the instruction.

    Raises:
        RowDropped: ``NOT_NEW``: it is similar to an example or to an instruction of an earlier round.
    """
    pool = row.tools.pools[column.name]
    examples = pool.examples(f"{row.tools.seed}\0{column.name}\0{row.index}")
    listed = "\n".join(f"{number}. {text}" for number, text in enumerate(examples, start=1))
    about = f", about: {row.fill(column.about)}" if column.about is not None else ""
    text = row.ask(column, _ASK.format(examples=listed, number=len(examples) + 1, about=about))
    # Models continue the list: only the first line is the new instruction.
    instruction = _NUMBER.sub("", text.split("\n", 1)[0]).strip()
    if not pool.is_new(instruction, in_round=False):
        raise RowDropped(VerdictCode.NOT_NEW)
    return instruction


def _drawn(texts: Sequence[str], count: int, key: str) -> list[str]:
    """Return a sample of texts, chosen by the order of their keyed digests."""
    return sorted(texts, key=lambda text: hashlib.sha256(f"{key}\0{text}".encode()).digest())[:count]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _rouge_l(words: Sequence[str], others: Sequence[str]) -> float:
    """Return ROUGE-L; 0 if the lengths alone show that it is below :data:`LEAST_SIMILAR`."""
    total = len(words) + len(others)
    if 2 * min(len(words), len(others)) < LEAST_SIMILAR * total:
        return 0.0
    return 2 * LCSseq.similarity(words, others) / total
