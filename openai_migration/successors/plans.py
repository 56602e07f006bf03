"""Plans of successors: for a tuned model and a base, the contract, the origins of its values, and the requirements of
training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from openai_migration.archive.folder import make_private, safe_name, write_json
from openai_migration.successors.contracts import ConvertedModel, Source, successor_name, successor_sections
from openai_migration.successors.planners import Planner
from shared.errors import ArtifactInvalid, Code, MensError, NotFound
from shared.hashing import digest_file, digest_json

PLANS = "plans"


class Rows(msgspec.Struct, frozen=True):
    """A file of rows in the archive, and its content."""

    path: str
    sha256: str


class TrainingEstimate(msgspec.Struct, frozen=True):
    """Requirements of training, as the preflight reports them; None means unknown.

    Attributes:
        parameters: number of parameters of the base.
        context: context length of the base, in tokens.
        tokens: number of trained tokens in all epochs.
        memory_bytes: memory needed on the device; ``memory_budget`` is the available part.
        seconds: duration, estimated from the speed of earlier jobs on this base.
    """

    parameters: int
    context: int | None
    steps: int
    tokens: int | None
    memory_bytes: int
    memory_budget: int | None
    seconds: float | None


class SuccessorPlan(msgspec.Struct, frozen=True):
    """``plans/PROJECT/MODEL/BASE.json``; its contract may be edited before ``train``.

    Attributes:
        model: the tuned model at OpenAI, and ``job`` the job that made it.
        name: name of the adapter.
        contract: sections of the fine-tune contract, without the files' ids.
        sources: origins of its values.
        warnings: rows that will not be trained on unchanged.
        planned_for: the installation, or the machine.
    """

    model: str
    project: str
    job: str
    base: str
    name: str
    contract: dict[str, Any]
    train: Rows
    validation: Rows | None
    sources: list[Source]
    estimate: TrainingEstimate
    warnings: list[str]
    planned_for: str
    format: Literal["mens-migration-plan/1"] = "mens-migration-plan/1"

    @property
    def digest(self) -> str:
        """Digest of contract and data; equal trainings have equal digests."""
        data = [rows and rows.sha256 for rows in (self.train, self.validation)]
        return digest_json({"contract": self.contract, "data": data, "name": self.name})


@dataclass(frozen=True, slots=True)
class PlanRefusal:
    """A base on which a model's successor cannot be trained, and why."""

    base: str
    error: MensError


def plan_successors(
    folder: Path, model: ConvertedModel, planner: Planner, bases: Sequence[str]
) -> Iterator[SuccessorPlan | PlanRefusal]:
    """Yield a plan, or a refusal, for each base.

    Raises:
        NotFound: ``MODEL_NOT_FOUND``: a base is not in the catalogue.
    """
    rates = planner.bases()
    for base in bases or rates:
        if base not in rates:
            message = (
                f"The base {base!r} is not in the catalogue of {planner.place}; it has {', '.join(rates) or 'none'}."
            )
            raise NotFound(Code.MODEL_NOT_FOUND, message, remedy="Add it with `mens base add`.", param="bases")
        sections, sources = successor_sections(model, base, rates[base])
        try:
            answer = planner.plan(sections, model.train, model.validation)
        except MensError as error:
            yield PlanRefusal(base, error)
        else:
            yield _plan(folder, model, base, sections, sources, answer, planner.place)


def _plan(
    folder: Path,
    model: ConvertedModel,
    base: str,
    sections: dict[str, Any],
    sources: list[Source],
    answer: dict[str, Any],
    place: str,
) -> SuccessorPlan:
    preflight, planned = answer["preflight"], answer["plan"]
    needs, seq_len = preflight["estimate"], planned["contract"]["exec"]["seq_len"]
    reason = "tokens of the longest row, within the limits of the base and the memory"
    return SuccessorPlan(
        model=model.name,
        project=model.project,
        job=str(model.job["id"]),
        base=base,
        name=successor_name(model.name),
        contract=sections | {"exec": sections["exec"] | {"seq_len": seq_len}},
        train=_rows(folder, model.train),
        validation=_rows(folder, model.validation) if model.validation else None,
        sources=[*sources, Source("exec.seq_len", None, seq_len, reason)],
        estimate=TrainingEstimate(
            parameters=needs["parameters"],
            context=preflight["model"]["config"].get("max_positions"),
            steps=planned["optimizer_steps"],
            tokens=needs["tokens"],
            memory_bytes=needs["vram_bytes"],
            memory_budget=needs["vram_budget"],
            seconds=needs["seconds"],
        ),
        warnings=preflight["warnings"],
        planned_for=place,
    )


def write_plan(folder: Path, plan: SuccessorPlan) -> Path:
    """Write a plan, replacing an earlier one; return its path."""
    path = folder / PLANS / safe_name(plan.project) / safe_name(plan.model) / f"{safe_name(plan.base)}.json"
    make_private(path.parent, folder)
    write_json(path, plan)
    return path


def read_plans(folder: Path, models: Sequence[str] = ()) -> list[SuccessorPlan]:
    """Read the plans of an archive, of all models or of some.

    Raises:
        ArtifactInvalid: a plan cannot be read, or its rows have changed since.
        NotFound: no plan exists.
    """
    plans = [_read(path) for path in sorted((folder / PLANS).glob("*/*/*.json"))]
    plans = [plan for plan in plans if not models or plan.model in models]
    if not plans:
        which = f" of {', '.join(models)}" if models else ""
        remedy = f"Run `mens migrate openai plan {folder}` first."
        raise NotFound(Code.ARCHIVE_INVALID, f"{folder} has no plan{which}.", remedy=remedy)
    return plans


def rows_of(folder: Path, rows: Rows) -> Path:
    """Return the file of a plan's rows.

    Raises:
        ArtifactInvalid: it differs from the file that was planned.
    """
    path = folder / rows.path
    if not path.is_file() or digest_file(path) != rows.sha256:
        message = f"{path} has changed since the plan was made."
        raise ArtifactInvalid(Code.ARCHIVE_INVALID, message, remedy=f"Run `mens migrate openai plan {folder}` again.")
    return path


def _rows(folder: Path, path: Path) -> Rows:
    return Rows(path.relative_to(folder).as_posix(), digest_file(path))


def _read(path: Path) -> SuccessorPlan:
    try:
        return msgspec.json.decode(path.read_bytes(), type=SuccessorPlan)
    except msgspec.DecodeError as error:
        message = f"The plan {path} cannot be read: {error}."
        raise ArtifactInvalid(Code.ARCHIVE_INVALID, message, remedy="Correct the file, or run `plan` again.") from None
