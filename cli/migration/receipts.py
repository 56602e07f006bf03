"""The receipt of a gate: whether a new model may take a tuned model's place, by which evidence, and what it rests on.

``gate/MODEL.json`` of an archive. ``gate`` writes it, ``switch`` reads it before it moves a name, ``report``
shows it. The shape is documented in docs/migration.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from cli.migration.archive.folder import make_private, safe_name, write_json
from shared.errors import ArtifactInvalid, Code
from shared.statistics.paired import Status

GATE = "gate"
LARGE_MARGIN = 0.1
"""A loss that a reader would not expect behind the word passed."""


class Gate(msgspec.Struct, frozen=True):
    """One thing that the new model must not be worse in.

    Attributes:
        name: what is compared, e.g. ``similarity``, ``json_valid``, ``eval:Tone/exact``.
        block: whether it counts for the verdict; one that does not is shown only.
        old: mean of the recorded answers.
        new: mean of the new model's answers to the same prompts.
        value: what is held against ``bound``: ``new - old``, or a rate. None without any pair.
        interval: confidence interval of ``value``.
        bound: ``value`` passes when the interval's lower end is not below it.
        items: prompts that were compared.
        items_needed: prompts that would decide, where these are too few.
        smallest_visible: the smallest loss that so many prompts show four times out of five.
        p_value: of the old and the new model being alike, two-sided.
        reason: why it is not passed, or what a reader has to know.
        unscored: prompts that are left out because a model that judges gave no score.
        decisive: whether a model that always scores 0 would fail it. A gate that nonsense passes proves nothing.
    """

    name: str
    status: Status
    block: bool
    old: float | None
    new: float | None
    value: float | None
    interval: tuple[float, float] | None
    bound: float
    items: int
    items_needed: int | None = None
    smallest_visible: float | None = None
    p_value: float | None = None
    reason: str = ""
    decisive: bool = False
    unscored: int = 0

    @property
    def passed(self) -> bool:
        return self.status is Status.PASSED


class GraderCheck(msgspec.Struct, frozen=True):
    """Whether a grader of OpenAI's gives here the scores that it gave there: on OpenAI's own stored answers.

    Attributes:
        name: of the gate.
        compared: stored answers that were graded again.
        agreeing: how many of them got the stored score.
        may_block: whether they are enough of them, so that its gate counts for the verdict.
        differences: the first answers with another score: {item, stored, here}.
        refused: why it cannot be run here; empty when it can.
        unscored: stored answers for which the model that judges gave no score; they are not among ``compared``.
    """

    name: str
    compared: int
    agreeing: int
    may_block: bool
    differences: list[dict[str, str | float]] = []
    refused: str = ""
    unscored: int = 0


class Counts(msgspec.Struct, frozen=True):
    """How many prompts there were, and what came of them.

    Attributes:
        recorded: prompts with an answer of the old model.
        answered: of them, those with one of the new model too.
        refused: of them, those that the installation refused; its codes with their counts.
        reasons: the first message of each of these codes.
        unbounded: of the answered, those that were requested without the recorded bound on tokens, which is longer than the
            new model's context.
    """

    recorded: int
    answered: int
    refused: dict[str, int]
    reasons: dict[str, str] = {}
    unbounded: int = 0

    @property
    def nothing_measured(self) -> bool:
        """Whether every prompt was refused, so that nothing is known of the new model's answers."""
        return not self.answered and bool(self.refused)


class Noise(msgspec.Struct, frozen=True):
    """How far the old model's answers to one prompt lie apart: what no successor can be better than.

    Attributes:
        prompts: those that were answered more than once.
        similarity: mean of the later answers with the first, as the gate ``similarity`` measures it; None without any.
    """

    prompts: int
    similarity: float | None


class Receipt(msgspec.Struct, frozen=True):
    """``gate/MODEL.json``.

    Attributes:
        foreign_model: the tuned model's name at OpenAI.
        mens_model: the adapter, alias or base that was asked, by the name that was given.
        adapters: immutable ids of the adapters that answered, as the installation says; empty for a base.
        installation: address of the API that was asked.
        verdict: ``passed`` when every blocking gate has, and there is one.
        reason: why it is not ``passed``.
        margin: what a mean score may lose.
        margins: the same for gates whose names fit a pattern, by that.
        min_prompts: a gate of fewer prompts is shown only.
        confidence: of each interval's lower end.
        inputs: SHA-256 of the files that it rests on, by their path in the archive.
        versions: of Mens and of the libraries that score.
        made_at: in UTC.
        judges: the model that has judged, by the name that the graders have.
    """

    foreign_model: str
    project: str
    mens_model: str
    adapters: list[str]
    installation: str
    verdict: Status
    reason: str
    margin: float
    confidence: float
    counts: Counts
    gates: list[Gate]
    graders: list[GraderCheck]
    noise: Noise
    inputs: dict[str, str]
    versions: dict[str, str]
    made_at: str
    judges: dict[str, str] = {}
    margins: dict[str, float] = {}
    min_prompts: int = 0
    format: Literal["mens-migration-gate/1"] = "mens-migration-gate/1"

    @property
    def largest_margin(self) -> float:
        """The largest loss that any gate allows."""
        return max(self.margin, *self.margins.values()) if self.margins else self.margin


def receipt_file(model: str) -> str:
    """Path of a tuned model's receipt in the archive."""
    return f"{GATE}/{safe_name(model)}.json"


def write_receipt(folder: Path, receipt: Receipt) -> Path:
    """Write a receipt in the place of the one before; returns its path."""
    path = folder / receipt_file(receipt.foreign_model)
    make_private(path.parent, folder)
    write_json(path, receipt)
    return path


def read_receipt(folder: Path, model: str) -> Receipt | None:
    """The receipt of a tuned model; None when there was no gate.

    Raises:
        ArtifactInvalid: it cannot be read.
    """
    path = folder / receipt_file(model)
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Receipt)
    except msgspec.DecodeError as error:
        message = f"The receipt {path} cannot be read: {error}."
        raise ArtifactInvalid(Code.ARCHIVE_INVALID, message, remedy="Run `mens migrate openai gate` again.") from None
