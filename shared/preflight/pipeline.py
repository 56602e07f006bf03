"""All checks before training, in one pass: for the API at submission, the worker as its first stage, and the command
line offline. Reads headers, config, tokenizer and data; no weight, no GPU library.

    contract ─► refusals ─► model folder ─► presets ─► refusals ─► length, targets, servability ─► tokenizer
             ─► data and supervision, each file read once ─► presets, refusals and plan, with rows and their length ─► estimate

Cheap checks come first. The first fault that makes the job impossible raises an error, with its code and remedy.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from shared.base_models.catalog import BaseModelEntry, refuse_unknown_files
from shared.base_models.config import ModelConfig
from shared.contract.auto_hyperparameters import note_on_default_rate, note_on_forgetting
from shared.contract.base_quant import is_open, pair_of, settled
from shared.contract.choices import BaseQuant, Device, HeldBase, TokenizerMode
from shared.contract.contracts import FineTuneContract
from shared.contract.epochs import Histogram, rows_per_epoch
from shared.contract.flat_keys import parse_backend
from shared.contract.plan import DataFile, ExecutionPlan, plan_finetune, reject_unsupported
from shared.contract.presets import AUTO, Resolution, auto_row, resolve_contract
from shared.contract.refusals import RefusalContext, check_refusals, target_device
from shared.errors import Code, ContractRejected
from shared.preflight.activations import Recompute
from shared.preflight.base_model import check_targets, preflight_model, read_model_type
from shared.preflight.base_precision import decide
from shared.preflight.data_files import Findings, JobFiles, Kind, read_files
from shared.preflight.estimate import estimate, largest_step
from shared.preflight.parents import (
    ANSWER_MODELS,
    check_base,
    check_shape,
    describe_differences,
    inherited_values,
    with_answer_models,
)
from shared.preflight.sequence_length import OpenLength, open_length
from shared.preflight.servability import check_servable, check_served_weights, rows_too_long, serving_notes
from shared.preflight.types import Estimate, InputFile, JobRequest, Machine, PlannedDevice, Preflight
from shared.tokenization.supervision_report import SupervisionReport
from shared.tokenization.template_arguments import ChatOptions
from shared.tokenization.tokenizer import Tokenizer

DEFAULT_NAME = "adapter"


def preflight(
    request: JobRequest,
    base: BaseModelEntry,
    base_folder: Path,
    train: InputFile,
    validation: InputFile | None,
    machine: Machine,
    replay: InputFile | None = None,
) -> Preflight:
    """Check a job completely and plan it.

    Args:
        request: the contract and its presets.
        base: the catalogue's entry of the base model.
        base_folder: its files.
        train: the training file.
        validation: the validation file, if any.
        machine: known facts about trainer and server.
        replay: the replay file, if any.

    Raises:
        MensError: the code of the first fault that makes the job impossible.
    """
    request = _with_backend(request)
    check_base(request.contract, request.parent, base)
    # Before weights and data are opened: refusals by the contract alone.
    model_type = read_model_type(base_folder)
    facts = RefusalContext(
        machine.device,
        model_type,
        None,
        None,
        force_kernel=request.backend,
        accepted=request.accepted,
        gpu_fault=machine.gpu_fault,
    )
    _check_alone(request.contract, facts)
    model = preflight_model(base_folder, tokenizer_mode=TokenizerMode.HF)
    refuse_unknown_files(base_folder)
    resolve = partial(
        resolve_contract,
        request.contract,
        preset=request.preset,
        domain=request.domain,
        parameters=model.parameters,
        vram_mb=None if machine.vram_bytes is None else machine.vram_bytes >> 20,
        max_positions=model.config.max_positions,
        inherited=inherited_values(request.contract, request.parent, model.config),
    )
    resolution = resolve()
    # Presets and ladder may decide nothing: then it is the same object, which has already been checked against the
    # refusals.
    if resolution.contract is not request.contract:
        _check_resolved(resolution, facts)
    on_gpu = target_device(resolution.contract, facts) is not Device.CPU
    # If the precision is open, rows are read at the longer of the two lengths, and decide it.
    lengths = _open_lengths(request, resolution, model.config, machine, on_gpu=on_gpu)
    seq_len = max((length.limit for length in lengths.values() if length), default=resolution.contract.exec.seq_len)
    positions = model.config.max_positions
    if positions is not None and seq_len > positions:
        raise rows_too_long(seq_len, positions)
    check_targets(resolution.contract.adapter.target_modules, model.config)
    check_shape(resolution.contract, request.parent, model.config)
    if machine.limits:
        check_servable(resolution.contract, model.config, machine.limits, base_digest=base.digest)
    files = JobFiles(train, validation, replay)
    tokenizer = Tokenizer.load(base_folder, ChatOptions.of(resolution.contract.data))
    findings = read_files(resolution.contract, seq_len, tokenizer, files, machine)
    data, supervision = findings.data, findings.supervision["train"]
    findings.refuse()
    difficulties = findings.trained_on("train")
    rows = sum(difficulties.values())
    # Bounds by rows change the schedule only, and a length from the data is the one at which rows were truncated above.
    measured = {
        base: length.decide(resolution.contract, findings.longest_row) if length else {}
        for base, length in lengths.items()
    }
    tried = resolve(rows=rows, measured=next(iter(measured.values()))).contract
    precision = decide(
        tried, model.config, machine, on_gpu=on_gpu, of_parent=request.parent.quant_base if request.parent else None
    )
    if not _holds_rows(lengths, precision.base_quant, findings.longest_row):
        precision = precision.model_copy(
            update={"precision": "nf4", "reason": "the longest row does not fit in memory in full precision"}
        )
    resolution = resolve(rows=rows, measured=measured[precision.base_quant], open_base=precision.base_quant)
    contract = with_answer_models(findings.with_weights(resolution.contract), request.parent)
    if machine.limits:
        check_served_weights(contract, machine.limits)
    stack = model.middle.matched, model.middle.expected
    context = replace(facts, n_layers=model.config.layers, rows=rows, proxy_stack=stack)
    plan = plan_finetune(
        contract,
        base,
        _data_file(train, findings, "train"),
        _data_file(validation, findings, "validation") if validation else None,
        request.name or contract.exec.adapter_tag or contract.artifact.alias or DEFAULT_NAME,
        context,
        replay=_data_file(replay, findings, "replay") if replay else None,
        difficulties=difficulties,
        parent=request.parent,
    )
    needs = _estimate(plan, model.config, difficulties, supervision, machine, context)
    leaks = findings.leaks(plan.validation_rows, contract.exec.seed)
    data = data.model_copy(update={"notes": [*data.notes, *leaks]})
    warnings = [*findings.warnings(contract), *leaks]
    served = serving_notes(contract, machine.limits) if machine.limits else []
    is_default = resolution.sources["exec.learning_rate"] == "default"
    advice = note_on_default_rate(
        contract.exec.learning_rate,
        is_default=is_default,
        base=base.name,
        rate_of_base=base.learning_rate,
        pairs=contract.has_preferences,
    )
    advice += note_on_forgetting(
        contract.exec.epochs,
        contract.exec.learning_rate,
        base.learning_rate,
        has_replay=replay is not None,
        pairs=contract.has_preferences,
    )
    return Preflight(
        plan=plan,
        model=model,
        data=data,
        supervision=supervision,
        estimate=needs,
        precision=precision,
        device=_planned_device(contract, machine, context),
        # A rule's value has the precedence of an explicit one, unless the data has changed it.
        sources={
            path: "auto" if path in request.auto and source == "explicit" else source
            for path, source in resolution.sources.items()
        }
        | ({ANSWER_MODELS: "parent"} if contract.provenance != resolution.contract.provenance else {}),
        warnings=warnings,
        advice=advice,
        notes=list(
            dict.fromkeys(
                [
                    *advice,
                    *plan.notes,
                    *_unknown_machine(request, machine),
                    *resolution.notes,
                    *describe_differences(contract, request.parent),
                    *warnings,
                    *model.notes,
                    *([supervision.end_token_note] if supervision.end_token_note else []),
                    *tokenizer.notes,
                    *data.notes,
                    *served,
                    *needs.notes,
                ]
            )
        ),
    )


def _with_backend(request: JobRequest) -> JobRequest:
    """Return the request with the method and precision that its backend implies, if the contract leaves them open."""
    contract = request.contract
    if request.backend is None or not is_open(contract):
        return request
    section = contract.exec.model_copy(update={"backend": parse_backend(request.backend)})
    return replace(request, contract=contract.model_copy(update={"exec": section}))


def _open_lengths(
    request: JobRequest, resolution: Resolution, config: ModelConfig, machine: Machine, *, on_gpu: bool
) -> dict[HeldBase, OpenLength | None]:
    """Return the bounds of an open length for each possible precision of the base, full precision first."""
    contract = resolution.contract
    bases: list[HeldBase] = [BaseQuant.NONE, BaseQuant.NF4] if is_open(contract) else [pair_of(contract)[1]]
    return {
        base: open_length(
            request,
            resolution.model_copy(update={"contract": settled(contract, base)}),
            config,
            machine,
            on_gpu=on_gpu,
        )
        for base in bases
    }


def _holds_rows(lengths: dict[HeldBase, OpenLength | None], base: HeldBase, longest: int) -> bool:
    """Return whether every row that fits with NF4 also fits with this precision, without truncation."""
    own, least = lengths[base], lengths.get(BaseQuant.NF4)
    return own is None or least is None or own.limit >= min(longest, least.limit)


def _check_alone(contract: FineTuneContract, facts: RefusalContext) -> None:
    """Refuse a contract by its own fields, before a file is opened."""
    # Once the base's depth is known, the plan shows whether the cap is too low.
    check_refusals(contract, replace(facts, n_layers=contract.exec.qlora_proxy_max_layers))
    reject_unsupported(contract, accepted=facts.accepted)


def _check_resolved(resolution: Resolution, facts: RefusalContext) -> None:
    """Refuse a contract by fields that presets decided; the error names the preset or profile that set the field."""
    try:
        _check_alone(resolution.contract, facts)
    except ContractRejected as error:
        origin = resolution.sources.get(error.param or "", "explicit")
        if origin in ("explicit", "default"):
            raise
        remedy = f"The {origin} sets {error.param}: choose another {origin}, or set the field yourself."
        raise ContractRejected(
            error.code, error.message, remedy=remedy, param=error.param, details=error.details
        ) from None


def _estimate(
    plan: ExecutionPlan,
    config: ModelConfig,
    difficulties: Histogram,
    supervision: SupervisionReport,
    machine: Machine,
    context: RefusalContext,
) -> Estimate:
    """Estimate the planned job, or refuse one that does not fit the device."""
    contract = plan.contract
    # With the least memory that the trainer can use: on a GPU it can recompute activations.
    on_gpu = target_device(contract, context) is not Device.CPU
    needs = estimate(
        contract,
        config,
        rows=plan.train.rows,
        mean_tokens=supervision.tokens / supervision.rows if supervision.rows else None,
        epoch_rows=rows_per_epoch(
            plan.train.rows - plan.validation_rows,
            contract,
            difficulties=difficulties,
            replay=plan.replay.rows if plan.replay else 0,
        ),
        vram_bytes=machine.memory(on_gpu=on_gpu),
        machine=machine,
        supervised=supervision.supervised_tokens / supervision.tokens if supervision.tokens else 1.0,
        # Rows that are padded take the longest row's tokens each.
        step_tokens=None if config.linear else largest_step(contract, supervision),
        recompute=Recompute.BLOCKS if on_gpu else Recompute.NONE,
        on_gpu=on_gpu,
        devices=machine.sharers(contract, on_gpu=on_gpu),
    )
    if not needs.possible:
        raise _too_large(needs)
    if needs.fits is False:
        note = "The job needs more memory than the device has; the trainer splits its steps, or the base."
        needs = needs.model_copy(update={"notes": (*needs.notes, note)})
    if on_gpu and machine.free_bytes is not None and needs.vram_bytes > machine.free_bytes:
        note = (
            f"{machine.free_bytes >> 20} MiB of the device's memory are free now, less than the job needs without "
            "splitting."
        )
        needs = needs.model_copy(update={"notes": (*needs.notes, note)})
    return needs


def _planned_device(contract: FineTuneContract, machine: Machine, context: RefusalContext) -> PlannedDevice:
    written = contract.device.device is not Device.AUTO
    device = "cpu" if (target := target_device(contract, context)) is Device.CPU else target.value
    return PlannedDevice.model_validate(
        {"device": device, "source": "device.device of the contract" if written else machine.origin}
    )


def _too_large(needs: Estimate) -> ContractRejected:
    nearest = needs.nearest_fit
    return ContractRejected(
        Code.MEMORY_DOES_NOT_FIT,
        f"The job needs {needs.vram_bytes >> 20} MiB; the device has {(needs.vram_budget or 0) >> 20} MiB for it.",
        remedy=nearest.advice if nearest else needs.notes[-1],
        param="exec.seq_len" if nearest else "model.hf_repo",
        details={"vram": needs.vram.model_dump(), "nearest_fit": nearest.model_dump() if nearest else None},
    )


def _unknown_machine(request: JobRequest, machine: Machine) -> list[str]:
    """Return a note if the preset was chosen for an unknown machine."""
    if request.preset != AUTO or machine.vram_bytes is not None or machine.host_bytes is not None:
        return []
    smallest = f"its smallest row (GPUs of {auto_row(None).max_vram_mb} MiB)"
    return [
        (
            f"No worker has reported its memory, so the preset auto uses {smallest}. Name a preset, or try again when a "
            "worker is running."
        )
    ]


def _data_file(file: InputFile, findings: Findings, kind: Kind) -> DataFile:
    rows = sum(findings.trained_on(kind).values())
    return DataFile(file_id=file.file_id, sha256=file.sha256, bytes=file.path.stat().st_size, rows=rows)
