"""Stage ``pairs``: units → training rows. A row whose answer the checker rejects is never written."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec

from corpus.claims import claimed
from corpus.keys import stage_mark
from corpus.pairs.rule import Draft, PairRule, RuleContext, wording
from corpus.pairs.rules import load_rules
from corpus.pairs.test_for import functions_named
from corpus.provenance import Provenance, row_id
from corpus.shards import MAX_SHARD_BYTES, ShardIndex, StageWriter, checked_shards, read_index
from corpus.units.checker_threads import CheckerThreads
from corpus.units.records import UnitRow, read_units
from corpus.verdicts import VerdictCode
from shared.checkers.anti_stub import measure_substance
from shared.checkers.checker import Check
from shared.checkers.contained import ContainedCheckers
from shared.errors import Code, InvalidRequest
from shared.hashing import digest_json

STAGE = "pairs"
VERSION = 1
"""Increase this when the same units would give different bytes."""
BROKEN = "CORPUS_PAIR_BROKEN"
"""Name of the count of rows whose answer does not pass its checker."""
CODE_KINDS = frozenset(("function", "method", "class", "test"))

_Made = list[tuple[str, Draft, str]]


@dataclass(frozen=True)
class Pairing:
    """The stage for the units of some folders.

    Args:
        sources: folders that ``extract`` has written.
        rules: names of rules; empty: all.
        processes: number of checker processes; None: one per processor. The output does not depend on it.

    Raises:
        InvalidRequest: ``CORPUS_RULE_UNKNOWN``.
    """

    sources: tuple[Path, ...]
    rules: tuple[str, ...] = ()
    processes: int | None = None
    name: str = STAGE
    version: int = VERSION

    def __post_init__(self) -> None:
        load_rules(self.rules)

    def parameters(self) -> dict[str, Any]:
        """Return everything except the units that affects the output."""
        rules = {rule.name: rule.version for rule in self._rules}
        return {"rules": rules, "wording": digest_json(wording())}

    def inputs(self) -> dict[str, str]:
        """Return the digest of each source."""
        digests = {}
        for number, source in enumerate(self.sources):
            index = read_index(source)
            if index is None:
                checked_shards(source)
            assert index
            digests[str(number)] = index.digest()
        return digests

    def run(self, target: Path, key: str, max_bytes: int = MAX_SHARD_BYTES) -> ShardIndex:
        """Write the rows.

        Raises:
            InvalidRequest: ``CORPUS_SOURCE_EMPTY``: no rule makes a row from any unit.
        """
        shards = [shard for source in self.sources for shard in checked_shards(source)]
        rows, left_out, seen = Counter[str](), Counter[str](), set[str]()
        with (
            _NamedUnits(shards) as named,
            claimed(target, is_folder=True),
            StageWriter(target, stage=self.name, key=key, max_bytes=max_bytes) as writer,
            CheckerThreads(self.processes) as threads,
        ):
            make = partial(_make, self._rules, named)
            mark = stage_mark(self.name, key)
            for (_, origin), drafts in threads.map(make, read_units(shards)):
                for rule, draft, verdict in drafts:
                    identity = "" if verdict else row_id(draft.row)
                    if verdict or identity in seen:
                        left_out[verdict or VerdictCode.DUPLICATE_EXACT] += 1
                        continue
                    seen.add(identity)
                    rows[rule] += 1
                    writer.write_row(draft.row, _provenance(origin, rule, draft, mark))
            writer.report = {"rows": dict(sorted(rows.items())), "left_out": dict(sorted(left_out.items()))}
            if not writer.rows:
                raise _empty(self.sources, [rule.name for rule in self._rules], writer.report["left_out"])
        assert writer.index
        return writer.index

    @cached_property
    def _rules(self) -> list[PairRule]:
        return load_rules(self.rules)


class _NamedUnits:
    """Functions by name; only their positions are held in memory. A context manager; thread-safe.

    Args:
        shards: shards of units.
    """

    def __init__(self, shards: Sequence[Path]) -> None:
        self._stack = ExitStack()
        self._files = [self._stack.enter_context(path.open("rb")) for path in shards]
        self._places: dict[str, tuple[int, int, int] | None] = {}
        self._tested: set[str] = set()
        for number, file in enumerate(self._files):
            place = 0
            for line in file:
                self._note(_decode_unit(line), (number, place, len(line)))
                place += len(line)

    def __enter__(self) -> _NamedUnits:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def function(self, name: str) -> UnitRow | None:
        """See :class:`corpus.pairs.rule.Neighbours`."""
        place = self._places.get(name)
        if place is None:
            return None
        number, offset, length = place
        # Threads share the file, so its position must not be used.
        return _decode_unit(os.pread(self._files[number].fileno(), length, offset))

    def is_tested(self, name: str) -> bool:
        """See :class:`corpus.pairs.rule.Neighbours`."""
        return name in self._tested and self._places.get(name) is not None

    def _note(self, unit: UnitRow, place: tuple[int, int, int]) -> None:
        if unit.kind == "function":
            self._places[unit.name] = None if unit.name in self._places else place
        elif unit.kind == "test":
            self._tested.update(functions_named(unit))


_decode_unit = msgspec.json.Decoder(UnitRow).decode


def _make(
    rules: Sequence[PairRule], named: _NamedUnits, checkers: ContainedCheckers, item: tuple[UnitRow, Provenance]
) -> _Made:
    """Return the drafts of a unit, each with the name of its rule and the reason if it is left out."""
    unit, _ = item
    applicable_rules = [rule for rule in rules if unit.kind in rule.needs]
    measures = Check((), unit.constructs, unit.size)
    if applicable_rules and unit.kind in CODE_KINDS and not measure_substance(unit.code, measures).passes:
        return [("", Draft({}), VerdictCode.STUB)]
    context = RuleContext(checkers, named)
    return [
        (rule.name, draft, _verdict(draft, checkers))
        for rule in applicable_rules
        for draft in rule.pairs(unit, context)
    ]


def _verdict(draft: Draft, checkers: ContainedCheckers) -> str:
    if draft.proof and not checkers.check(draft.language, draft.proof).compiles:
        return BROKEN
    if not str(draft.row["response"]).strip():
        return VerdictCode.TOO_SHORT
    return ""


def _provenance(origin: Provenance, rule: str, draft: Draft, mark: str) -> Provenance:
    checks = {"rule": rule, **draft.checks}
    if draft.proof:
        checks["compiles"] = True
    return Provenance(
        id="",
        source=origin.source,
        locator=origin.locator,
        content_sha256=origin.content_sha256,
        license=origin.license,
        stages=[*origin.stages, mark],
        parents=[origin.id],
        checks=checks,
    )


def _empty(sources: Sequence[Path], rules: Sequence[str], left_out: Mapping[str, int]) -> InvalidRequest:
    reasons = ", ".join(f"{reason} {count}" for reason, count in left_out.items()) or "none"
    names = ", ".join(map(str, sources))
    return InvalidRequest(
        Code.CORPUS_SOURCE_EMPTY,
        f"The rules {', '.join(rules)} make no rows from the units in {names}; left out: {reasons}.",
        remedy=(
            "Extract other files, or name other rules: functions need docstrings, statements need comments "
            "(docs/corpus.md)."
        ),
        param="sources",
    )
