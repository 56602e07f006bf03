"""Everything that can be known before training, in one pass: for the API at submission, the worker as its first stage,
and the command line offline. Reads headers, config, tokenizer and data; no weight, no GPU library.

    contract ─► presets ─► gates ─► model folder ─► data ─► gates again, with rows ─► servability
             ─► supervision ─► estimate ─► plan

Cheap checks come first. The first thing that makes the job impossible raises, with its code and what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from shared.catalog import BaseModelEntry
from shared.contract import DataMode, DataSection, Device, FineTuneContract, TokenizerMode
from shared.data_report import inspect_file, refusal
from shared.data_shapes import DataReport
from shared.epochs import rows_per_epoch
from shared.errors import Code, ContractRejected
from shared.estimate import CPU_RUNTIME_BYTES, RUNTIME_BYTES, Estimate, estimate
from shared.flat import parse_contract
from shared.gates import GateContext, check_gates, target_device
from shared.model_preflight import ModelReport, preflight_model, training_preflight_record
from shared.planner import DataFile, ExecutionPlan, plan_finetune, reject_unsupported
from shared.presets import Source, resolve_contract
from shared.row_filters import RowFilter
from shared.servability import ServingLimits, check_servable, serving_notes
from shared.supervision import supervise_file
from shared.supervision_report import SupervisionReport

DEFAULT_NAME = "adapter"


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody asks for.

    Attributes:
        sections: the contract's sections as far as they were written.
        preset: a preset's name, or ``auto``.
        domain: a domain profile's name.
        name: left part of the adapter's id; the contract's tag when None.
    """

    sections: Mapping[str, Any]
    preset: str | None = None
    domain: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class InputFile:
    """A training, validation or replay file on this machine."""

    file_id: str
    sha256: str
    path: Path


@dataclass(frozen=True, slots=True)
class Machine:
    """What is known of where the job will run and be served; None is unknown.

    Attributes:
        device: ``cpu``, ``cuda`` or ``auto``.
        vram_bytes: memory of the training device.
        limits: of the serving tier.
        tokens_per_second: measured training rate for this base.
        thorough: look at every row. A control plane that answers a request looks at a sample of a large file instead,
            says so, and leaves the rest to the worker.
    """

    device: str = "auto"
    vram_bytes: int | None = None
    limits: ServingLimits | None = None
    tokens_per_second: float | None = None
    thorough: bool = True


SAMPLED_ROWS = 20_000
NEAR_DUPLICATE_BYTES = 64 << 20
"""Above this size a control plane looks for exact duplicates only."""


class Preflight(BaseModel):
    """What the preflight found, and the plan it leads to.

    Attributes:
        sources: who decided each field of the contract.
        notes: what the operator should know although nothing forbids it.
    """

    model_config = ConfigDict(frozen=True, protected_namespaces=())
    plan: ExecutionPlan
    model: ModelReport
    data: DataReport
    supervision: SupervisionReport
    estimate: Estimate
    sources: dict[str, Source]
    notes: list[str]

    def record(self) -> dict[str, Any]:
        """Content of ``training-preflight.json``."""
        return training_preflight_record(
            contract_digest=self.plan.contract_digest,
            execution_kernel=self.plan.execution_kernel,
            notes=self.notes,
            model=self.model,
            data=self.data,
            supervision=self.supervision,
            estimate=self.estimate,
        )


def preflight(
    asked: Asked,
    base: BaseModelEntry,
    base_folder: Path,
    train: InputFile,
    validation: InputFile | None,
    machine: Machine,
    replay: InputFile | None = None,
) -> Preflight:
    """Check a job to the end and plan it.

    Args:
        asked: the contract and its presets.
        base: the catalogue's entry of the base model. base_folder: its files.
        train: the training file. validation: the validation file, if there is one.
        machine: what is known of trainer and server.
        replay: the replay file, if there is one.

    Raises:
        MensError: the code of the first thing that makes the job impossible.
    """
    _refuse_early(parse_contract(asked.sections), machine)
    model = preflight_model(base_folder, tokenizer_mode=TokenizerMode.HF)
    contract, sources, data = _resolve_on_data(asked, model, train, validation, machine)
    replayed = _inspect_replay(replay, contract.data)
    rows, difficulties = data.training.trainable_rows, data.training.trainable_difficulties
    context = _context(machine, model, rows)
    _refuse_too_long(contract, model)
    if machine.limits:
        check_servable(contract, model.config, machine.limits, base_digest=base.digest)
    plan = plan_finetune(
        contract,
        base,
        _data_file(train, data.training.bytes, rows),
        _data_file(validation, data.validation.bytes, data.validation.trainable_rows)
        if validation and data.validation
        else None,
        asked.name or contract.exec.adapter_tag or contract.artifact.alias or DEFAULT_NAME,
        context,
        replay=replayed,
        difficulties=difficulties,
    )
    supervision = _supervise(contract, base_folder, train, machine)
    mean_tokens = supervision.tokens / supervision.rows if supervision.rows else None
    on_gpu = (
        target_device(contract, context) is not Device.CPU
    )  # where the engine recomputes activations, and computes in two bytes
    needs = estimate(
        contract,
        model.config,
        rows=rows,
        mean_tokens=mean_tokens,
        epoch_rows=rows_per_epoch(
            rows - plan.validation_rows, contract, difficulties=difficulties, replay=replayed.rows if replayed else 0
        ),
        vram_bytes=machine.vram_bytes,
        tokens_per_second=machine.tokens_per_second,
        checkpointing=on_gpu,
        compute_bytes=2 if on_gpu else 4,
        runtime_bytes=RUNTIME_BYTES if on_gpu else CPU_RUNTIME_BYTES,
    )
    _refuse_too_large(needs)
    served = serving_notes(contract, machine.limits) if machine.limits else []
    notes = [*plan.notes, *_truncation_notes(supervision, contract), *model.notes, *data.notes, *served, *needs.notes]
    return Preflight(
        plan=plan, model=model, data=data, supervision=supervision, estimate=needs, sources=sources, notes=notes
    )


def _refuse_early(contract: FineTuneContract, machine: Machine) -> None:
    """What the contract alone forbids, before a file is opened."""
    cap = contract.exec.qlora_proxy_max_layers  # whether it is too low is seen once the base's depth is known
    check_gates(contract, GateContext(device=machine.device, model_type="unknown", n_layers=cap, rows=None))
    reject_unsupported(contract)


def _resolve_on_data(
    asked: Asked, model: ModelReport, train: InputFile, validation: InputFile | None, machine: Machine
) -> tuple[FineTuneContract, dict[str, Source], DataReport]:
    """Presets may depend on the number of rows, and which rows count on the presets' filters."""
    resolve = partial(
        resolve_contract,
        asked.sections,
        preset=asked.preset,
        domain=asked.domain,
        parameters=model.parameters,
        vram_mb=None if machine.vram_bytes is None else machine.vram_bytes >> 20,
    )
    first = resolve()
    try:
        _refuse_early(first.contract, machine)
    except ContractRejected as error:
        raise _with_origin(error, first.sources) from None
    data = _inspect(train, validation, first.contract.data, machine)
    resolution = resolve(rows=data.training.trainable_rows)
    return resolution.contract, resolution.sources, data


def _inspect(train: InputFile, validation: InputFile | None, wanted: DataSection, machine: Machine) -> DataReport:
    filters = RowFilter.of(wanted)
    near = machine.thorough or train.path.stat().st_size <= NEAR_DUPLICATE_BYTES
    report = inspect_file(
        train.path,
        validation=validation.path if validation else None,
        filters=filters,
        mode=wanted.mode,
        near=near,
    )
    if error := refusal(report, filters):
        raise error
    return report


def _inspect_replay(replay: InputFile | None, wanted: DataSection) -> DataFile | None:
    if replay is None:
        return None
    filters = RowFilter.of_replay(wanted)
    report = inspect_file(replay.path, filters=filters, mode=wanted.mode, near=False)
    if error := refusal(report, filters, "data.replay_file"):
        raise error
    return _data_file(replay, report.training.bytes, report.training.trainable_rows)


def _supervise(contract: FineTuneContract, base_folder: Path, train: InputFile, machine: Machine) -> SupervisionReport:
    report = supervise_file(
        train.path,
        base_folder,
        seq_len=contract.exec.seq_len,
        last_k=contract.exec.qlora_ce_last_k,
        filters=RowFilter.of(contract.data),
        lenient=contract.data.mode is DataMode.LENIENT,
        limit_rows=None if machine.thorough else SAMPLED_ROWS,
    )
    report.refuse()
    return report


def _refuse_too_long(contract: FineTuneContract, model: ModelReport) -> None:
    asked, most = contract.exec.seq_len, model.config.max_positions
    if most is not None and asked > most:
        raise ContractRejected(
            Code.SEQ_LEN_TOO_LARGE,
            f"exec.seq_len is {asked}; the base model has {most} positions.",
            remedy=f"Set exec.seq_len to {most} or less.",
            param="exec.seq_len",
        )


def _refuse_too_large(needs: Estimate) -> None:
    if needs.fits is not False:
        return
    nearest = needs.nearest_fit
    raise ContractRejected(
        Code.MEMORY_DOES_NOT_FIT,
        f"The job takes {needs.vram_bytes >> 20} MiB; the device has {(needs.vram_budget or 0) >> 20} MiB for it.",
        remedy=nearest.advice if nearest else needs.notes[-1],
        param="exec.batch_size",
        details={"vram": needs.vram.model_dump(), "nearest_fit": nearest.model_dump() if nearest else None},
    )


def _with_origin(error: ContractRejected, sources: Mapping[str, Source]) -> ContractRejected:
    """Name the preset or profile that set a field which its caller never wrote."""
    origin = sources.get(error.param or "", "explicit")
    if origin in ("explicit", "default"):
        return error
    remedy = f"The {origin} sets {error.param}: choose another {origin}, or set the field yourself."
    return ContractRejected(error.code, error.message, remedy=remedy, param=error.param, details=error.details)


def _truncation_notes(found: SupervisionReport, contract: FineTuneContract) -> list[str]:
    if not found.truncated_rows:
        return []
    long_rows = (
        f"{found.truncated_rows} of {found.rows} rows are longer than exec.seq_len ({contract.exec.seq_len} tokens)"
    )
    return [f"{long_rows}: their beginning is cut off. Raise exec.seq_len to keep it."]


def _context(machine: Machine, model: ModelReport, rows: int) -> GateContext:
    config = model.config
    return GateContext(device=machine.device, model_type=config.model_type, n_layers=config.layers, rows=rows)


def _data_file(file: InputFile, size: int, rows: int) -> DataFile:
    return DataFile(file_id=file.file_id, sha256=file.sha256, bytes=size, rows=rows)
