"""Contamination: rows that hold the items of an eval, which would make its scores worthless.

An item's prompt and its reference are sets of runs of eight words, each weighted by how rare it is among the items of
its eval. A row is contaminated if it contains half of the weight of either set. Runs that occur in more than 1 % of an
eval's items (instructions, licences) do not count. A prompt that has no other runs is compared as a whole with each
user turn.

Words are normalised as in ``shared/datasets/fingerprints.py``: case and white space do not matter.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.datasets.fingerprints import fingerprints, word_hashes
from shared.errors import Code, InvalidRequest, NotFound
from shared.hashing import digest_json

GRAM_WORDS = 8
CONTAMINATED, NOTICED = 0.5, 0.2
"""Minimum shares of an item at which a row is left out, and at which it is listed."""
COMMON_SHARE = 0.01
"""Largest share of an eval's items that may have a run of words before the run stops counting."""
REFERENCES = frozenset(
    (
        "expect",
        "expected",
        "reference",
        "answer",
        "answers",
        "response",
        "output",
        "completion",
        "solution",
        "target",
        "ideal",
    )
)
"""Keys of an item that hold its reference."""
PROMPTS = frozenset(("prompt", "question", "query", "instruction", "input", "context"))
"""Keys of an item that hold its prompt."""
_PRIME, _MIX = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT = np.uint64(29)
_ARRAYS = ("grams", "starts", "sides", "weights", "totals", "whole", "whole_sides")

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class EvalContent:
    """The items of an eval.

    Attributes:
        name: for reports.
    """

    name: str
    items: Sequence[Mapping[str, Any]]

    def digest(self) -> str:
        """Return the SHA-256 of the items; the eval's name is not part of it."""
        return digest_json(list(self.items))


def read_items(path: Path) -> EvalContent:
    """Read the items of a JSONL file, or of a JSON file that is a list.

    Raises:
        NotFound: ``CORPUS_SOURCE_MISSING``.
        InvalidRequest: ``CORPUS_RECIPE_INVALID``.
    """
    try:
        text = path.read_text(encoding="utf-8")
        items = (
            json.loads(text)
            if text.lstrip().startswith("[")
            else [json.loads(line) for line in text.splitlines() if line.strip()]
        )
    except FileNotFoundError:
        raise NotFound(
            Code.CORPUS_SOURCE_MISSING,
            f"The eval file {path} does not exist.",
            remedy="Correct `decontaminate.files`; paths start at the mix file's folder (--root changes it).",
            param="decontaminate.files",
        ) from None
    except ValueError as error:
        raise _invalid_items(path, str(error)) from None
    if not items or not all(isinstance(item, dict) for item in items):
        raise _invalid_items(path, "it has no items, or an item is not an object")
    return EvalContent(path.name, items)


def _invalid_items(path: Path, why: str) -> InvalidRequest:
    return InvalidRequest(
        Code.CORPUS_RECIPE_INVALID,
        f"The eval file {path} is neither JSONL nor a list of JSON objects: {why}.",
        remedy="Write one JSON object per line.",
        param="decontaminate.files",
    )


def sides_of(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return the texts of an item's prompt and of its reference.

    The prompt is the user's turns; without those, the values of the ``PROMPTS`` keys; without those, every string
    except the reference. The reference is the values of the ``REFERENCES`` keys and the assistant's last turn.
    """
    inner = item.get("item")
    if isinstance(inner, dict):
        item = inner
    turns = item.get("messages") or item.get("turns")
    chat = [turn for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
    prompt = [text for turn in chat if turn.get("role") == "user" for text in _strings(turn.get("content"))]
    reference = list(_strings(chat[-1].get("content"))) if chat and chat[-1].get("role") == "assistant" else []
    reference += [text for key in item if key in REFERENCES for text in _strings(item[key])]
    if not prompt:
        named = [key for key in item if key in PROMPTS] or [key for key in item if key not in REFERENCES]
        prompt = [text for key in named for text in _strings(item[key])]
    return "\n".join(prompt), "\n".join(reference)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


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


class EvalIndex:
    """Index of the items of evals, as arrays that processes can share on disk.

    Args:
        names: names of the evals.
        places: ``(eval, number, side)`` of each item.
    """

    def __init__(self, names: list[str], places: NDArray[np.uint32], arrays: dict[str, NDArray[Any]]) -> None:
        self._names, self._places = names, places
        self._grams, self._starts, self._sides = arrays["grams"], arrays["starts"], arrays["sides"]
        self._weights, self._totals = arrays["weights"], arrays["totals"]
        self._whole, self._whole_sides = arrays["whole"], arrays["whole_sides"]

    @classmethod
    def of(cls, evals: Sequence[EvalContent]) -> EvalIndex:
        """Index the items of evals."""
        places: list[tuple[int, int, int]] = []
        grams: list[Hashes] = []
        sides: list[NDArray[np.uint32]] = []
        weights: list[NDArray[np.float32]] = []
        whole: list[int] = []
        whole_sides: list[int] = []
        for number, content in enumerate(evals):
            texts = [text for item in content.items for text in sides_of(item)]
            runs = [np.unique(run_grams) for run_grams in grams_of(texts)]
            for side in (0, 1):
                own = [(index, run_grams) for index, run_grams in enumerate(runs) if index % 2 == side]
                counts = Counter(gram for _, run_grams in own for gram in run_grams.tolist())
                most = max(1, COMMON_SHARE * len(content.items))
                for index, run_grams in own:
                    rarity = np.array([counts[gram] for gram in run_grams.tolist()], np.int64)
                    rare = run_grams[rarity <= most]
                    place = len(places)
                    places.append((number, index // 2 + 1, side))
                    if len(rare):
                        grams.append(rare)
                        sides.append(np.full(len(rare), place, np.uint32))
                        weights.append(np.log1p(len(content.items) / rarity[rarity <= most]).astype(np.float32))
                    elif side == 0 and texts[index].strip():
                        whole += fingerprints([texts[index]], near=False)[0]
                        whole_sides.append(place)
        return cls._joined([content.name for content in evals], places, grams, sides, weights, whole, whole_sides)

    @classmethod
    def _joined(
        cls,
        names: list[str],
        places: list[tuple[int, int, int]],
        grams: list[Hashes],
        sides: list[NDArray[np.uint32]],
        weights: list[NDArray[np.float32]],
        whole: list[int],
        whole_sides: list[int],
    ) -> EvalIndex:
        every = np.concatenate([np.empty(0, np.uint64), *grams])
        order = np.argsort(every, kind="stable")
        unique, starts = np.unique(every[order], return_index=True)
        side = np.concatenate([np.empty(0, np.uint32), *sides])[order]
        weight = np.concatenate([np.empty(0, np.float32), *weights])[order]
        totals = np.bincount(side, weight, minlength=len(places)) if len(side) else np.zeros(len(places))
        first = np.argsort(np.array(whole, np.uint64), kind="stable")
        arrays = {
            "grams": unique,
            "starts": np.append(starts, len(every)).astype(np.int64),
            "sides": side,
            "weights": weight,
            "totals": totals,
            "whole": np.array(whole, np.uint64)[first],
            "whole_sides": np.array(whole_sides, np.uint32)[first],
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
        """Return, for each row, the item of which it contains the largest share; None if that share is below
        :data:`NOTICED`.

        Args:
            rows: all texts of each row, and its user turns.
        """
        overlaps = [self._best(grams) for grams in grams_of(["\n".join(texts) for texts, _ in rows])]
        users = [(number, text) for number, (_, turns) in enumerate(rows) for text in turns]
        if len(self._whole) and users:
            digests = np.array(fingerprints([text for _, text in users], near=False)[0], np.uint64)
            at = np.minimum(np.searchsorted(self._whole, digests), len(self._whole) - 1)
            for index in np.flatnonzero(self._whole[at] == digests).tolist():
                number, text = users[index]
                overlaps[number] = self._overlap(int(self._whole_sides[at[index]]), 1.0, (1, len(text.split())))
        return overlaps

    def _best(self, grams: Hashes) -> Overlap | None:
        if not len(grams) or not len(self._grams):
            return None
        at = np.minimum(np.searchsorted(self._grams, grams), len(self._grams) - 1)
        held = np.flatnonzero(self._grams[at] == grams)
        if not len(held):
            return None
        at = np.unique(at[held])
        begins, ends = self._starts[at], self._starts[at + 1]
        entries = np.concatenate([np.arange(begin, end) for begin, end in zip(begins, ends, strict=True)])
        sides, position = np.unique(self._sides[entries], return_inverse=True)
        scores = np.bincount(position, self._weights[entries]) / self._totals[sides]
        best = int(scores.argmax())
        if scores[best] < NOTICED:
            return None
        side = int(sides[best])
        own = self._grams[np.unique(np.searchsorted(self._starts, entries[position == best], "right") - 1)]
        words = np.flatnonzero(np.isin(grams, own))
        return self._overlap(side, float(scores[best]), (int(words[0]) + 1, int(words[-1]) + GRAM_WORDS))

    def _overlap(self, side: int, score: float, words: tuple[int, int]) -> Overlap:
        number, item, kind = self._places[side].tolist()
        return Overlap(self._names[number], item, ("prompt", "reference")[kind], round(min(score, 1.0), 3), words)


@lru_cache(maxsize=1)
def loaded(folder: Path) -> EvalIndex:
    """Return the index of a folder; it is mapped once per process."""
    return EvalIndex.load(folder)


def grams_of(texts: Sequence[str]) -> list[Hashes]:
    """Return the hashes of all eight-word runs of each text, in order; a shorter text has none."""
    hashes: list[Hashes] = []
    for words, counts in word_hashes(texts):
        ends = np.cumsum(counts).tolist()
        if len(words) < GRAM_WORDS:
            hashes += [np.empty(0, np.uint64)] * len(ends)
            continue
        last = len(words) - GRAM_WORDS + 1
        grams = np.zeros(last, np.uint64)
        for offset in range(GRAM_WORDS):
            grams *= _PRIME
            grams += words[offset : offset + last]
        grams ^= grams >> _SHIFT
        grams *= _MIX
        for end, count in zip(ends, counts.tolist(), strict=True):
            hashes.append(grams[end - count : max(end - count, end - GRAM_WORDS + 1)])
    return hashes
