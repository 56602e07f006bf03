"""Stage ``extract``: files → units. Each file is divided in a checker process, and units are written in the order of
files.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec

from corpus.claims import claimed
from corpus.filters.secrets import texts_with_secrets
from corpus.keys import stage_mark
from corpus.provenance import Provenance
from corpus.shards import MAX_SHARD_BYTES, ShardIndex, StageWriter
from corpus.units.checker_threads import CheckerThreads
from corpus.units.files import TreeFile, digest_source, find_files, is_minified, is_test_file, read_source
from corpus.units.markdown import find_sections, is_excluded
from corpus.units.records import LeftOut, UnitRow
from corpus.units.repository import Repository, find_repository
from shared.checkers.contained import ContainedCheckers
from shared.checkers.languages import require_language
from shared.checkers.unit import Unit
from shared.errors import Code, InvalidRequest

STAGE = "extract"
VERSION = 2
"""Increase this when the same files would give different bytes."""
MARKDOWN = "markdown"
SUFFIXES = {"python": (".py",), MARKDOWN: (".md",), "sql": (".sql",)}
"""File suffixes by language; for other languages, the suffix is a period and the language's name."""
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_REASONS = {"syntax": LeftOut.NOT_COMPILING, "too_long": LeftOut.TOO_LONG, "time_limit": LeftOut.TIME_LIMIT}


@dataclass(slots=True)
class _FileUnits:
    """Units of a file, and counts of what was left out."""

    sha256: str = ""
    units: list[UnitRow] = field(default_factory=list)
    left_out: Counter[LeftOut] = field(default_factory=Counter)


@dataclass(frozen=True)
class Extraction:
    """The stage for files of some languages.

    Args:
        paths: folders and files.
        languages: ``markdown``, and languages with a checker that divides files.
        license: an SPDX expression, for the provenance.
        processes: number of files that are divided at a time; None: one per processor. The output does not depend on
            it.

    Raises:
        InvalidRequest: ``CHECKER_NOT_FOUND``.
    """

    paths: tuple[Path, ...]
    languages: tuple[str, ...]
    license: str | None = None
    processes: int | None = None
    name: str = STAGE
    version: int = VERSION

    def __post_init__(self) -> None:
        for language in self.languages:
            if language != MARKDOWN:
                require_language(language)

    def parameters(self) -> dict[str, Any]:
        """Return everything except the files that affects the output."""
        places = [
            [repository.top.name, repository.commit] if repository else [root.name]
            for root, repository in self._repositories.items()
        ]
        return {"languages": sorted(self.languages), "license": self.license, "places": places}

    def inputs(self) -> dict[str, str]:
        """Return the digest of all files' names and contents."""
        sha256 = hashlib.sha256()
        for language, file in self._files:
            sha256.update(f"{language}\0{file.name}\0{digest_source(file)}\n".encode())
        return {"files": sha256.hexdigest()}

    def run(self, target: Path, key: str, max_bytes: int = MAX_SHARD_BYTES) -> ShardIndex:
        """Write the units.

        Raises:
            InvalidRequest: ``CORPUS_SOURCE_EMPTY``: no file has a unit.
        """
        left_out = Counter(self._left_out)
        kinds: Counter[str] = Counter()
        divide = partial(_divide, self._repositories)
        with (
            claimed(target, is_folder=True),
            StageWriter(target, stage=self.name, key=key, max_bytes=max_bytes) as writer,
            CheckerThreads(self.processes) as threads,
        ):
            for (_, file), divided in threads.map(divide, self._files):
                left_out.update(divided.left_out)
                for unit in divided.units:
                    kinds[unit.kind] += 1
                    sources = self._provenance(unit, file, divided.sha256, stage_mark(self.name, key))
                    writer.write_line(msgspec.json.encode(unit), msgspec.json.encode(sources))
            writer.report = {
                "files": len(self._files),
                "units": dict(sorted(kinds.items())),
                "left_out": dict(sorted(left_out.items())),
            }
            if not writer.rows:
                raise _empty(self, len(self._files), writer.report["left_out"])
        assert writer.index
        return writer.index

    def _provenance(self, unit: UnitRow, file: TreeFile, sha256: str, mark: str) -> Provenance:
        repository = self._repositories[file.root]
        locator = {"path": unit.path, "lines": [unit.first_line, unit.last_line], "file_sha256": sha256}
        if repository:
            locator = {"repo": repository.top.name, "commit": repository.commit, **locator}
        return Provenance(
            id=unit.id,
            source=f"code:{repository.top.name if repository else file.root.name}",
            locator=locator,
            content_sha256=hashlib.sha256(unit.code.encode()).hexdigest(),
            license=self.license,
            stages=[mark],
            checks=unit.checks,
        )

    @cached_property
    def _files(self) -> list[tuple[str, TreeFile]]:
        return [
            (language, file)
            for language in sorted(self.languages)
            for file in find_files(self.paths, SUFFIXES.get(language, (f".{language}",)), self._counter(language))
        ]

    def _counter(self, language: str) -> Counter[LeftOut]:
        # Each language walks the same tree; its folders and links are counted once.
        return self._left_out if language == min(self.languages) else Counter()

    @cached_property
    def _left_out(self) -> Counter[LeftOut]:
        return Counter()

    @cached_property
    def _repositories(self) -> dict[Path, Repository | None]:
        return {root: find_repository(root) for root in dict.fromkeys(path.resolve() for path in self.paths)}


def _divide(
    repositories: Mapping[Path, Repository | None], checkers: ContainedCheckers, item: tuple[str, TreeFile]
) -> _FileUnits:
    language, file = item
    divided = _FileUnits()
    text = read_source(file)
    if isinstance(text, LeftOut):
        divided.left_out[text] += 1
        return divided
    divided.sha256 = hashlib.sha256(text.encode()).hexdigest()
    repository = repositories[file.root]
    path = repository.path_of(file) if repository else file.name
    if language == MARKDOWN:
        if is_excluded(text):
            divided.left_out[LeftOut.NOT_ELIGIBLE] += 1
            return divided
        units = find_sections(text)
    else:
        units = _divided(checkers, language, text, divided.left_out)
    staleness = repository.staleness(path) if repository and language == MARKDOWN else 0
    has_secret = bool(texts_with_secrets([text]))
    for unit in units:
        if has_secret and texts_with_secrets([unit.code, unit.docstring]):
            divided.left_out[LeftOut.SECRET] += 1
        elif reason := _unit_refusal(unit, path):
            divided.left_out[reason] += 1
        else:
            divided.units.append(UnitRow.of(unit, path, staleness))
    return divided


def _divided(checkers: ContainedCheckers, language: str, text: str, left_out: Counter[LeftOut]) -> list[Unit]:
    if is_minified(text):
        left_out[LeftOut.MINIFIED] += 1
        return []
    divided = checkers.units(language, text)
    if divided.diagnostics:
        left_out[_REASONS.get(divided.diagnostics[0].code, LeftOut.TOO_COMPLEX)] += 1
    return list(divided.units)


def _unit_refusal(unit: Unit, path: str) -> LeftOut | None:
    if _SURROGATE.search(unit.docstring):
        # An escape in a docstring can give half of a surrogate pair, which no row can contain.
        return LeftOut.LONE_SURROGATE
    if unit.kind in ("function", "method", "class", "module") and is_test_file(path):
        return LeftOut.TEST_HELPER
    return None


def _empty(extraction: Extraction, files: int, left_out: dict[str, int]) -> InvalidRequest:
    names = ", ".join(map(str, extraction.paths))
    reasons = ", ".join(f"{reason} {count}" for reason, count in left_out.items()) or "none"
    suffixes = [suffix for language in extraction.languages for suffix in SUFFIXES.get(language, (f".{language}",))]
    return InvalidRequest(
        Code.CORPUS_SOURCE_EMPTY,
        f"No unit of {', '.join(extraction.languages)} in {names}: {files} files end with {' or '.join(suffixes)}; "
        f"left out: {reasons}.",
        remedy="Name folders that hold such files, or another --language. Links and hidden folders are not followed.",
        param="paths",
    )
