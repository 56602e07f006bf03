"""OpenAI's fine-tuning jobs, events, checkpoints and files: the translation from and to our own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from api.errors import describe_faults
from api.openai.types import (
    CreateFineTuningJob,
    FileObject,
    FineTuningCheckpoint,
    FineTuningEvent,
    FineTuningJob,
    Hyperparameters,
    JobError,
    Status,
    unix_seconds,
)
from api.polling.queue_places import QueuePlace
from shared.base_models.catalog import BaseModelEntry
from shared.contract.auto_hyperparameters import (
    auto_batch_size,
    auto_epochs,
    auto_learning_rate,
    auto_pair_epochs,
)
from shared.contract.choices import MethodType
from shared.contract.contracts import FineTuneContract
from shared.contract.faults import UNKNOWN_FIELD, unknown_before_missing
from shared.contract.field_names import nearest_field
from shared.contract.flat_keys import SCHEMA_REMEDY
from shared.contract.values import BAD_NAME
from shared.database.adapters import Adapter
from shared.database.files.files import File
from shared.database.job_results import CHECKPOINT_TIMES
from shared.database.job_states import JobState
from shared.database.records import Event, Job
from shared.errors import Code, ContractRejected, InvalidRequest
from shared.job_progress import shown_progress
from shared.model_card.self_evaluation import KEY as SELF_EVALUATION

EVENT_PREFIX = "ftevent-"
CHECKPOINT_PREFIX = "ftckpt-"
STATUS: dict[JobState, Status] = {
    JobState.QUEUED: "queued",
    JobState.RUNNING: "running",
    JobState.PAUSED: "queued",  # OpenAI has no such status; the `mens` block has ours
    JobState.SUCCEEDED: "succeeded",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
}

RESOLVED = {
    "batch_size": "exec.batch_size",
    "n_epochs": "exec.epochs",
    "learning_rate_multiplier": "exec.learning_rate",
}
"""OpenAI's hyperparameters, and the fields that they become."""

CONTINUE_FIELD = "mens.adapter.continue_from"

FIELDS = {"data.train_file": "training_file", "data.validation_file": "validation_file", "model.hf_repo": "model"}
"""Fields of the contract with another name in OpenAI's request."""


def to_contract(
    body: CreateFineTuningJob, base: BaseModelEntry, rows: int, continues: bool = False
) -> tuple[FineTuneContract, dict[str, float]]:
    """Return the contract for an OpenAI request, and its hyperparameters with every ``auto`` resolved.

    Args:
        body: the request.
        base: the base that the request's ``model`` refers to.
        rows: lines of the training file.
        continues: ``model`` is a tuned model, which the job continues from.

    Raises:
        ContractRejected: ``CONTRACT_INVALID``: the ``mens`` block is not valid in a contract.
    """
    pairs = body.method_type in (MethodType.DPO, MethodType.KTO)
    resolved = resolve_auto(body.requested, rows, base.learning_rate, pairs=pairs)
    sections = body.mens.sections()
    _add_method(sections, body)
    sections["model"] = {"hf_repo": base.name}
    if continues:
        sections["adapter"] = sections.get("adapter", {}) | {"continue_from": body.model}
    # OpenAI trains on every row; a part of them is held out only if the caller requests it.
    data = {"validation_split_ratio": 0.0} | sections.get("data", {})
    data |= {"train_file": body.training_file, "validation_file": body.validation_file}
    sections["data"] = {key: value for key, value in data.items() if value is not None}
    own = {
        "batch_size": resolved["batch_size"],
        "epochs": resolved["n_epochs"],
        "learning_rate": auto_learning_rate(base.learning_rate, pairs=pairs) * resolved["learning_rate_multiplier"],
        "grad_accum": 1,
    }
    if body.seed is not None:
        own["seed"] = body.seed
    sections["exec"] = own | sections.get("exec", {})
    try:
        contract = FineTuneContract.model_validate(sections)
    except ValidationError as error:
        errors = unknown_before_missing(error.errors())
        path, reason = next(iter(describe_faults(errors, sections).items()))
        near = nearest_field(path) if errors[0]["type"] == UNKNOWN_FIELD else None
        field = f"mens.{path}"
        if path.removeprefix("exec.") in own.keys() - body.mens.sections().get("exec", {}).keys():
            field = _sent_as(path, body)
            if path == "exec.learning_rate":  # the bounds are the rate's, not the multiplier's
                reason = f"it gives the learning rate {own['learning_rate']:g}: {reason}"
        raise ContractRejected(
            Code.NAME_INVALID if errors[0]["type"] == BAD_NAME else Code.CONTRACT_INVALID,
            f"{field}: {reason}.",
            remedy=f"Did you mean mens.{near}? {SCHEMA_REMEDY}" if near else SCHEMA_REMEDY,
            param=field,
        ) from None
    resolved |= {"beta": contract.preference.strength} if pairs else {}
    return contract, resolved | _overridden(contract, body.mens.exec, base.learning_rate)


def _add_method(sections: dict[str, Any], body: CreateFineTuningJob) -> None:
    """Put OpenAI's method, and its beta, into the contract's sections.

    Raises:
        ContractRejected: ``CONTRACT_INVALID``: the ``mens`` block says otherwise.
    """
    if body.method is None:
        return
    beta = getattr(body.requested, "beta", "auto")
    of_method: dict[str, dict[str, Any]] = {
        "method": {"type": body.method.type},
        "preference": {} if beta == "auto" else {"beta": beta},
    }
    for section, fields in of_method.items():
        for name, value in fields.items():
            own = sections.get(section, {}).get(name, value)
            if own != value:
                raise ContractRejected(
                    Code.CONTRACT_INVALID,
                    f"mens.{section}.{name} is {own!r}, and method has {value!r}.",
                    remedy="Leave out one of the two.",
                    param=f"mens.{section}.{name}",
                )
            sections[section] = sections.get(section, {}) | {name: value}


def _overridden(contract: FineTuneContract, written: Mapping[str, Any], base_rate: float | None) -> dict[str, float]:
    """Return OpenAI's hyperparameters that the ``mens`` block overrides."""
    exec_ = contract.exec
    values: dict[str, float] = {}
    if "epochs" in written:
        values["n_epochs"] = exec_.epochs
    if {"batch_size", "grad_accum"} & written.keys():
        values["batch_size"] = exec_.batch_size * exec_.grad_accum
    if "learning_rate" in written:
        values["learning_rate_multiplier"] = exec_.learning_rate / auto_learning_rate(
            base_rate, pairs=contract.has_preferences
        )
    return values


def _sent_as(path: str, body: CreateFineTuningJob) -> str:
    """Return the request's own field for a field of the contract; for a learning rate, the multiplier."""
    name = next((name for name, resolved in RESOLVED.items() if resolved == path), path.removeprefix("exec."))
    if name not in RESOLVED:
        return name
    return f"method.{body.method.type}.hyperparameters.{name}" if body.method else f"hyperparameters.{name}"


def auto_fields(body: CreateFineTuningJob) -> frozenset[str]:
    """Return the fields of :func:`to_contract`'s contract that the auto rules decide, not the request."""
    requested = body.requested
    own_exec = body.mens.sections().get("exec", {})
    paths = {path for name, path in RESOLVED.items() if getattr(requested, name) == "auto"} | {"exec.grad_accum"}
    return frozenset(path for path in paths if path.removeprefix("exec.") not in own_exec)


def resolve_auto(
    requested: Hyperparameters, rows: int, rate_of_base: float | None, *, pairs: bool = False
) -> dict[str, float]:
    """Return OpenAI's three hyperparameters as numbers, for a training file of `rows` rows, or pairs of answers.

    The rules are in `shared/contract/auto_hyperparameters.py`.
    """
    batch_size = auto_batch_size(rows) if requested.batch_size == "auto" else requested.batch_size
    rule = auto_pair_epochs(rows, batch_size) if pairs else auto_epochs(rows, batch_size, rate_of_base)
    epochs = rule if requested.n_epochs == "auto" else requested.n_epochs
    multiplier = 1.0 if requested.learning_rate_multiplier == "auto" else requested.learning_rate_multiplier
    return {"batch_size": batch_size, "learning_rate_multiplier": multiplier, "n_epochs": epochs}


def to_field(param: str | None, continues: bool = False) -> str | None:
    """Return the field of OpenAI's request that an error is about.

    Args:
        continues: ``model`` is a tuned model, which the job continues from.
    """
    if param == "adapter.continue_from":
        return "model" if continues else CONTINUE_FIELD
    return FIELDS.get(param, param) if param else None


def job_view(job: Job, place: QueuePlace | None = None) -> FineTuningJob:
    """Return a fine-tune job in OpenAI's shape; ``place`` is the place of a queued job."""
    contract, result, error = job.contract, job.result, job.error
    hyperparameters = job.extra.get("hyperparameters")
    kind = contract.get("method", {}).get("type", MethodType.SUPERVISED)  # a job of an earlier release has none
    is_supervised = kind == MethodType.SUPERVISED
    if not hyperparameters:  # a job of the native API
        exec_ = contract["exec"]
        hyperparameters = {
            "batch_size": exec_["batch_size"] * exec_["grad_accum"],
            "learning_rate_multiplier": exec_["learning_rate"] / auto_learning_rate(None),
            "n_epochs": exec_["epochs"],
        }
        if not is_supervised:
            hyperparameters["beta"] = contract["preference"]["beta"]
    eta = job.progress.get("eta_seconds") if job.state is JobState.RUNNING else None
    error_view = None
    if error:
        message = f"{error['message']} {error['remedy']}".strip()
        error_view = JobError(code=error["code"], message=message, param=to_field(error["param"], _continues(job)))
    return FineTuningJob(
        id=job.id,
        created_at=unix_seconds(job.created_at),
        error=error_view,
        fine_tuned_model=result.get("adapter_id") if contract["artifact"]["publish"] else None,
        finished_at=unix_seconds(job.finished_at) if job.finished_at else None,
        hyperparameters=hyperparameters if is_supervised else {},  # at OpenAI, the hyperparameters of supervised jobs
        model=job.extra.get("requested_model") or job.base_model,
        organization_id=job.tenant,
        result_files=result.get("result_files", []),
        seed=contract["exec"]["seed"],
        # Never "validating_files", which at OpenAI precedes "queued": the loop in OpenAI's example ends at this status.
        # `mens.stage` has it.
        status=STATUS[job.state],
        trained_tokens=result.get("trained_tokens"),
        training_file=contract["data"]["train_file"],
        validation_file=contract["data"]["validation_file"],
        estimated_finish=None if eta is None else unix_seconds(datetime.now(UTC)) + round(float(eta)),
        metadata=job.labels,
        # OpenAI does not have the type kto, so its clients would refuse it.
        method=None if kind == MethodType.KTO else {"type": kind, kind: {"hyperparameters": hyperparameters}},
        mens={
            "base_model": job.base_model,
            "state": job.state,
            "stage": job.stage,
            "requested": job.requested,
            "attempt": job.attempt,
            "progress": shown_progress(job.progress),
            "precision": contract["quant"]["base"],
            "contract_digest": job.plan["contract_digest"],
            "parent": parent_view(job),
            "adapter_id": result.get("adapter_id"),
            "self_evaluation": result.get(SELF_EVALUATION),
            "error": error,
            "priority": job.priority,
            "max_wall_seconds": job.max_wall_seconds,
            "max_gpu_minutes": job.max_gpu_minutes,
            "queue": place.model_dump(mode="json") if place else None,
        },
    )


def _continues(job: Job) -> bool:
    """Return whether the request's ``model`` named the adapter that the job continues from."""
    name = job.contract["adapter"].get("continue_from")
    return name is not None and name == job.extra.get("requested_model")


def parent_view(job: Job) -> dict[str, Any] | None:
    """Return id, digest and step of the adapter that a job continues from; None without one."""
    parent = job.plan.get("parent")
    return {name: parent[name] for name in ("id", "digest", "step")} if parent else None


def to_name(suffix: str | None) -> str | None:
    """Convert OpenAI's free-form suffix to an adapter's name: lower case, and ``-`` for characters that a name may not
    contain.
    """
    if suffix is None:
        return None
    return re.sub(r"[^a-z0-9._-]+", "-", suffix.lower()).strip("-._") or None


def event_view(event: Event) -> FineTuningEvent:
    """Return an event in OpenAI's shape."""
    return FineTuningEvent(
        id=f"{EVENT_PREFIX}{event.seq}",
        created_at=unix_seconds(event.created_at),
        level=event.level,
        message=event.message,
        type=event.type,
        data=event.data,
    )


def event_seq(event_id: str | None, param: str = "after") -> int | None:
    """Return the cursor in an event's id.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``.
    """
    if event_id is None:
        return None
    if not (match := re.fullmatch(rf"(?:{EVENT_PREFIX})?(\d{{1,18}})", event_id)):
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            f"{event_id[:80]!r} is not an event's id.",
            remedy="Send an event's `id` or `seq` as it was received, or leave it out to start at the beginning.",
            param=param,
        )
    return int(match[1])


def checkpoint_view(adapter: Adapter, job: Job) -> FineTuningCheckpoint:
    """Return a stored checkpoint of a job in OpenAI's shape. Its model id can be used like any model's."""
    names = {"train_accuracy": "train_mean_token_accuracy"}
    metrics = {names.get(name, name): value for name, value in adapter.metrics.items() if name != SELF_EVALUATION}
    # Validation always reads every row, so OpenAI's number for a part of the rows equals its number for all of them.
    whole = {f"full_{name}": metrics[name] for name in ("valid_loss", "valid_mean_token_accuracy") if name in metrics}
    return FineTuningCheckpoint(
        id=f"{CHECKPOINT_PREFIX}{adapter.digest[:24]}",
        created_at=job.result.get(CHECKPOINT_TIMES, {}).get(adapter.id) or unix_seconds(adapter.created_at),
        fine_tuned_model_checkpoint=adapter.id,
        fine_tuning_job_id=job.id,
        step_number=adapter.step,
        metrics=metrics | whole,
    )


def file_view(file: File) -> FileObject:
    """Return a file in OpenAI's shape."""
    return FileObject(
        id=file.id,
        bytes=file.bytes,
        created_at=unix_seconds(file.created_at),
        filename=file.filename,
        purpose=file.purpose,
        expires_at=unix_seconds(file.expires_at) if file.expires_at else None,
    )
