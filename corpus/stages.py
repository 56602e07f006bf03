"""Stages: the interface that a build uses, and the decision whether and why a stage must run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from corpus.file_digests import DigestOf
from corpus.keys import stage_key
from corpus.shards import ShardIndex, changed_file, read_index, write_json
from shared.hashing import digest_file, digest_json

STATE_NAME = "build.json"


class CorpusStage(Protocol):
    """A stage whose output depends only on its parameters and the digests of its inputs."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    def parameters(self) -> dict[str, Any]:
        """Return everything except the inputs that affects the output, as JSON values."""
        ...

    def inputs(self) -> dict[str, str]:
        """Return the digest of each input."""
        ...

    def run(self, target: Path, key: str) -> ShardIndex:
        """Write the output."""
        ...


class StageAction(NamedTuple):
    """Decision to run a stage or not, and the reason: ``new``, ``input changed``, ``rule changed``, ``shard changed``, ``done``."""

    name: str
    runs: bool
    reason: str


class StageState(msgspec.Struct):
    """The rule and the input that a stage was last run with, as digests."""

    rule: str
    inputs: str


class BuildState:
    """Rules and inputs that the stages of a work folder were last run with; it only explains why a stage runs again."""

    def __init__(self, work: Path, digest: DigestOf = digest_file) -> None:
        self._digest = digest
        self._path = work / STATE_NAME
        try:
            self._stages = msgspec.json.decode(self._path.read_bytes(), type=dict[str, StageState])
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            self._stages = {}

    def decide(self, stage: CorpusStage, folder: Path) -> StageAction:
        """Return whether the stage must run, judged by its key and the digests of its shards."""
        index = read_index(folder)
        if index is None:
            return StageAction(stage.name, True, "new")
        if index.key != key_of(stage):
            before, now = self._stages.get(stage.name), _state_of(stage)
            return StageAction(
                stage.name, True, "rule changed" if before is None or before.rule != now.rule else "input changed"
            )
        if any(changed_file(folder, shard, self._digest) for shard in index.shards):
            return StageAction(stage.name, True, "shard changed")
        return StageAction(stage.name, False, "done")

    def note(self, stage: CorpusStage) -> None:
        """Store the rule and input that the stage was run with."""
        self._stages[stage.name] = _state_of(stage)
        write_json(self._path, self._stages)


def key_of(stage: CorpusStage) -> str:
    """Return the key of a stage."""
    return stage_key(stage.name, stage.version, stage.parameters(), stage.inputs())


def _state_of(stage: CorpusStage) -> StageState:
    return StageState(digest_json([stage.version, stage.parameters()]), digest_json(stage.inputs()))
