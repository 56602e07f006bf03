"""Contamination: rows that hold the items of an eval, which would make its scores worthless.

An item's prompt and its reference are sets of runs of eight words, each weighted by how rare it is among the items of
its eval. A row is contaminated if it contains half of the weight of either set. Runs that occur in more than 1 % of an
eval's items (instructions, licences) do not count. A prompt that has no other runs is compared as a whole with each
user turn.

Words are normalised as in ``shared/datasets/fingerprints.py``: case and white space do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from corpus.filters.eval_items import EvalContent, sides_of
from corpus.filters.word_runs import RUN_WORDS, Hashes, WordRuns
from shared.datasets.fingerprints import fingerprints

CONTAMINATED, NOTICED = 0.5, 0.2
"""Minimum shares of an item at which a row is left out, and at which it is listed."""
COMMON_SHARE = 0.01
"""Largest share of an eval's items that may have a run of words before the run stops counting."""
LEAST_HEADS_PER_RUN, MOST_HEADS = 8, 1 << 27
"""Size of the table of first bits, one byte a place: the least number of places for each run, and the largest number of all
places. If fewer runs share a place, fewer searches find nothing.
"""
_ARRAYS = ("runs", "heads", "starts", "sides", "weights", "totals", "whole", "whole_sides")


class Overlap(msgspec.Struct, frozen=True):
    """An eval item that a row contains.

    Attributes:
        item: its number in the eval, from 1.
        side: ``prompt`` or ``reference``.
        score: the share of that side that the row contains, 0 to 1.
        words: numbers of the first and the last matching word of the row, from 1.
    """

    eval: str
    item: int
    side: str
    score: float
    words: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Side:
    """The prompts or the references of an eval's items.

    Attributes:
        runs: the runs that count, by item and in ascending order within it.
        numbers: the place of the item that has each of them.
        weights: their weights.
        whole: digests of the texts that are compared as a whole.
        whole_numbers: the place of the item of each of these.
    """

    runs: Hashes
    numbers: NDArray[np.uint32]
    weights: NDArray[np.float32]
    whole: Hashes
    whole_numbers: NDArray[np.uint32]

    @classmethod
    def of(cls, texts: Sequence[str], runs: Hashes, items: NDArray[np.int64], first: int, *, has_whole: bool) -> _Side:
        """Weigh the runs of the items.

        Args:
            texts: the text of each item.
            runs: the runs of all texts.
            items: the number of the item that has each run.
            first: place of the first item.
            has_whole: whether a text without a run that counts is compared as a whole.
        """
        order = np.lexsort((runs, items))
        runs, items = runs[order], items[order]
        is_repeated = (runs[1:] == runs[:-1]) & (items[1:] == items[:-1])
        runs, items = (array[np.append(True, ~is_repeated)[: len(array)]] for array in (runs, items))
        _, which, counts = np.unique(runs, return_inverse=True, return_counts=True)
        rarity = counts[which]
        rare = rarity <= max(1, COMMON_SHARE * len(texts))
        weights = np.log1p(len(texts) / rarity[rare]).astype(np.float32)
        has_runs = np.bincount(items[rare], minlength=len(texts)) > 0
        whole = [item for item in np.flatnonzero(~has_runs).tolist() if has_whole and texts[item].strip()]
        digests, _ = fingerprints([texts[item] for item in whole], near=False)
        return cls(
            runs[rare],
            (first + items[rare]).astype(np.uint32),
            weights,
            np.array(digests, np.uint64),
            np.array(whole, np.uint32) + np.uint32(first),
        )


class EvalIndex:
    """Index of the items of evals, as arrays that processes can share on disk.

    Args:
        names: names of the evals.
        places: ``(eval, number, side)`` of each item.
    """

    def __init__(self, names: list[str], places: NDArray[np.uint32], arrays: dict[str, NDArray[Any]]) -> None:
        self._names, self._places = names, places
        self._runs, self._starts, self._sides = arrays["runs"], arrays["starts"], arrays["sides"]
        self._heads = arrays["heads"]
        self._weights, self._totals = arrays["weights"], arrays["totals"]
        self._whole, self._whole_sides = arrays["whole"], arrays["whole_sides"]

    @classmethod
    def of(cls, evals: Sequence[EvalContent]) -> EvalIndex:
        """Index the items of evals."""
        places: list[tuple[int, int, int]] = []
        sides: list[_Side] = []
        for number, content in enumerate(evals):
            texts = [text for item in content.items for text in sides_of(item)]
            runs = WordRuns.of(texts)
            items, kinds = np.divmod(runs.texts, 2)
            for kind in (0, 1):
                own = kinds == kind
                sides.append(_Side.of(texts[kind::2], runs.hashes[own], items[own], len(places), has_whole=kind == 0))
                places += [(number, item, kind) for item in range(1, len(content.items) + 1)]
        if not sides:
            sides = [_Side.of([], np.empty(0, np.uint64), np.empty(0, np.int64), 0, has_whole=False)]
        return cls._joined([content.name for content in evals], places, sides)

    @classmethod
    def _joined(cls, names: list[str], places: list[tuple[int, int, int]], sides: list[_Side]) -> EvalIndex:
        every = np.concatenate([side.runs for side in sides])
        order = np.argsort(every, kind="stable")
        unique, starts = np.unique(every[order], return_index=True)
        numbers = np.concatenate([side.numbers for side in sides])[order]
        weights = np.concatenate([side.weights for side in sides])[order]
        whole = np.concatenate([side.whole for side in sides])
        first = np.argsort(whole, kind="stable")
        arrays = {
            "runs": unique,
            "heads": _heads_of(unique),
            "starts": np.append(starts, len(every)).astype(np.int64),
            "sides": numbers,
            "weights": weights,
            "totals": np.bincount(numbers, weights, minlength=len(places)) if len(numbers) else np.zeros(len(places)),
            "whole": whole[first],
            "whole_sides": np.concatenate([side.whole_numbers for side in sides])[first],
        }
        return cls(names, np.array(places, np.uint32).reshape(-1, 3), arrays)

    def save(self, folder: Path) -> None:
        """Write the arrays into a new folder."""
        folder.mkdir()
        (folder / "names.json").write_bytes(msgspec.json.encode(self._names))
        np.save(folder / "places.npy", self._places)
        for name in _ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, f"_{name}"))

    @classmethod
    def load(cls, folder: Path) -> EvalIndex:
        """Memory-map the arrays of a folder, so that processes share them."""
        names = msgspec.json.decode((folder / "names.json").read_bytes(), type=list[str])
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
        return cls(names, np.load(folder / "places.npy"), arrays)

    def overlaps(self, rows: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[Overlap | None]:
        """Return, for each row, the item that it contains the largest share of; None if that share is below
        :data:`NOTICED`.

        Args:
            rows: all texts of each row, and its user turns.
        """
        overlaps: list[Overlap | None] = [None] * len(rows)
        runs = WordRuns.of(["\n".join(texts) for texts, _ in rows])
        for number in self._holding(runs):
            overlaps[number] = self._best(runs.of_text(number))
        users = [(number, text) for number, (_, turns) in enumerate(rows) for text in turns]
        if len(self._whole) and users:
            digests = np.array(fingerprints([text for _, text in users], near=False)[0], np.uint64)
            at = np.minimum(np.searchsorted(self._whole, digests), len(self._whole) - 1)
            for index in np.flatnonzero(self._whole[at] == digests).tolist():
                number, text = users[index]
                overlaps[number] = self._overlap(int(self._whole_sides[at[index]]), 1.0, (1, len(text.split())))
        return overlaps

    def _holding(self, runs: WordRuns) -> list[int]:
        """Return the numbers of the texts that hold a run of an item."""
        held, _ = self._find(runs.hashes)
        numbers: list[int] = np.unique(np.searchsorted(runs.ends, held, "right")).tolist()
        return numbers

    def _find(self, hashes: Hashes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where items have a run, and the place of each such run in the index."""
        # Nearly no run of a text is an item's. The table says so in a tenth of the time of a search.
        possible = np.flatnonzero(self._heads.take((hashes >> _head_shift(self._heads)).view(np.int64)))
        if not len(self._runs):
            return possible, possible
        at = np.minimum(np.searchsorted(self._runs, hashes[possible]), len(self._runs) - 1)
        is_held = self._runs[at] == hashes[possible]
        return possible[is_held], at[is_held]

    def _best(self, runs: Hashes) -> Overlap | None:
        """Return the item of which a text that holds a run of an item contains the largest share."""
        at = np.unique(self._find(runs)[1])
        begins, ends = self._starts[at], self._starts[at + 1]
        entries = np.concatenate([np.arange(begin, end) for begin, end in zip(begins, ends, strict=True)])
        sides, position = np.unique(self._sides[entries], return_inverse=True)
        scores = np.bincount(position, self._weights[entries]) / self._totals[sides]
        best = int(scores.argmax())
        if scores[best] < NOTICED:
            return None
        side = int(sides[best])
        own = self._runs[np.unique(np.searchsorted(self._starts, entries[position == best], "right") - 1)]
        words = np.flatnonzero(np.isin(runs, own))
        return self._overlap(side, float(scores[best]), (int(words[0]) + 1, int(words[-1]) + RUN_WORDS))

    def _overlap(self, side: int, score: float, words: tuple[int, int]) -> Overlap:
        number, item, kind = self._places[side].tolist()
        return Overlap(self._names[number], item, ("prompt", "reference")[kind], round(min(score, 1.0), 3), words)


def _heads_of(runs: Hashes) -> NDArray[np.bool_]:
    """Return a table of the first bits of hashes: whether any hash begins with them."""
    heads = np.zeros(min(1 << (LEAST_HEADS_PER_RUN * len(runs)).bit_length(), MOST_HEADS), np.bool_)
    heads[runs >> _head_shift(heads)] = True
    return heads


def _head_shift(heads: NDArray[np.bool_]) -> np.uint64:
    """Return how far a hash is shifted to be a place in the table."""
    return np.uint64(64 - (len(heads).bit_length() - 1))


@lru_cache(maxsize=1)
def loaded(folder: Path) -> EvalIndex:
    """Return the index of a folder; it is mapped once per process."""
    return EvalIndex.load(folder)
