"""The receipt of a gate: whether a new model may replace a tuned model, with the evidence and the inputs.

``gate/MODEL.json`` of an archive. ``gate`` writes it, ``switch`` reads it before it moves a name, ``report``
shows it. The shape is documented in docs/migration.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from openai_migration.archive.folder import make_private, safe_name, write_json
from shared.errors import ArtifactInvalid, Code
from shared.statistics.paired import Status

GATE = "gate"
LARGE_MARGIN = 0.1
"""A gate that allows a larger loss proves little when it passes."""


class MigrationGate(msgspec.Struct, frozen=True):
    """One measure on which the new model must not be worse.

    Attributes:
        name: the measure, e.g. ``similarity``, ``json_valid``, ``eval:Tone/exact``.
        block: whether it counts for the verdict; otherwise it is only shown.
        old: mean over the recorded answers.
        new: mean over the new model's answers to the same prompts.
        value: the value compared with ``bound``: ``new - old``, or a rate. None without any pair.
        interval: confidence interval of ``value``.
        bound: ``value`` passes when the interval's lower end is not below it.
        items: number of prompts that were compared.
        items_needed: number of prompts that would decide the gate, if these are too few.
        smallest_visible: the smallest loss that this many prompts detect four times out of five.
        p_value: two-sided p-value for the hypothesis that both models are equally good.
        reason: why it did not pass, or a note for the reader.
        unscored: number of prompts left out because a judge model gave no score.
        decisive: whether a model that always scores 0 would fail the gate; otherwise even nonsense passes it.
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
    """Comparison of a grader's scores here with its scores at OpenAI, on the answers that OpenAI stored.

    Attributes:
        name: name of the gate.
        compared: number of stored answers that were graded again.
        agreeing: number of those that got the stored score.
        may_block: whether enough scores agree for the gate to count for the verdict.
        differences: the first answers with a different score: {item, stored, here}.
        refused: why it cannot be run here; empty if it can.
        unscored: number of stored answers without a score of the judge model; they are not counted in ``compared``.
    """

    name: str
    compared: int
    agreeing: int
    may_block: bool
    differences: list[dict[str, str | float]] = []
    refused: str = ""
    unscored: int = 0


class Counts(msgspec.Struct, frozen=True):
    """Numbers of prompts by their outcome.

    Attributes:
        recorded: number of prompts with an answer of the old model.
        answered: number of those that also have an answer of the new model.
        refused: number of prompts that the installation refused, by its error code.
        reasons: the first message of each of these codes.
        unbounded: number of answered prompts that were requested without the recorded token limit, because it exceeds
            the new model's context.
    """

    recorded: int
    answered: int
    refused: dict[str, int]
    reasons: dict[str, str] = {}
    unbounded: int = 0

    @property
    def nothing_measured(self) -> bool:
        """Return true if every prompt was refused, so that the new model's answers are unknown."""
        return not self.answered and bool(self.refused)


class Noise(msgspec.Struct, frozen=True):
    """Variation among the old model's answers to the same prompt, which limits how similar a successor's answers can
    be.

    Attributes:
        prompts: number of prompts that were answered more than once.
        similarity: mean similarity of the later answers to the first, as the gate ``similarity`` measures it; None
            without any.
    """

    prompts: int
    similarity: float | None


class MigrationReceipt(msgspec.Struct, frozen=True):
    """``gate/MODEL.json``.

    Attributes:
        foreign_model: the tuned model's name at OpenAI.
        mens_model: the adapter, alias or base that answered, as the user named it.
        adapters: immutable ids of the adapters that answered, as the installation reports; empty for a base.
        installation: address of the API.
        verdict: ``passed`` if at least one blocking gate exists and all have passed.
        reason: why it is not ``passed``.
        margin: allowed loss of a mean score.
        margins: the same for gates whose names match a pattern, by pattern.
        min_prompts: a gate with fewer prompts is only shown.
        confidence: confidence of each interval's lower end.
        inputs: SHA-256 of the files that it was computed from, by their path in the archive.
        versions: versions of Mens and of the libraries that score.
        made_at: time in UTC.
        judges: the model that judged, by the name in the graders.
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
    gates: list[MigrationGate]
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
    """Return the path of a tuned model's receipt in the archive."""
    return f"{GATE}/{safe_name(model)}.json"


def write_receipt(folder: Path, receipt: MigrationReceipt) -> Path:
    """Write a receipt, replacing an earlier one; return its path."""
    path = folder / receipt_file(receipt.foreign_model)
    make_private(path.parent, folder)
    write_json(path, receipt)
    return path


def read_receipt(folder: Path, model: str) -> MigrationReceipt | None:
    """Read the receipt of a tuned model; return None if no gate was run.

    Raises:
        ArtifactInvalid: it cannot be read.
    """
    path = folder / receipt_file(model)
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=MigrationReceipt)
    except msgspec.DecodeError as error:
        message = f"The receipt {path} cannot be read: {error}."
        raise ArtifactInvalid(Code.ARCHIVE_INVALID, message, remedy="Run `mens migrate openai gate` again.") from None
