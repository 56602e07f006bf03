"""Everything that can be known before training, in one pass: for the API at submission, the worker as its first stage,
and the command line offline. Reads headers, config, tokenizer and data; no weight, no GPU library.

    contract ─► gates ─► model folder ─► presets ─► gates ─► length, servability ─► tokenizer
             ─► data and supervision, each file read once ─► presets, gates and plan, with rows and their length ─► estimate

Cheap checks come first. The first thing that makes the job impossible raises, with its code and what to do about it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from shared.base_models.catalog import BaseModelEntry
from shared.base_models.config import ModelConfig
from shared.contract.epochs import rows_per_epoch
from shared.contract.gates import GateContext, check_gates, target_device
from shared.contract.plan import DataFile, ExecutionPlan, plan_finetune, reject_unsupported
from shared.contract.presets import Resolution, is_small_dataset, resolve_contract
from shared.contract.sections import DataSection, Device, FineTuneContract, TokenizerMode
from shared.datasets.filters import RowFilter
from shared.datasets.reader import Hasher, count_lines
from shared.datasets.report import inspect_file, refusal
from shared.datasets.report_types import DataReport, FileReport
from shared.datasets.rows import Record, as_row
from shared.errors import ArtifactInvalid, Code, ContractRejected
from shared.preflight.base_model import preflight_model
from shared.preflight.estimate import CPU_RUNTIME_BYTES, RUNTIME_BYTES, estimate
from shared.preflight.sequence_length import open_length
from shared.preflight.servability import check_servable, serving_notes
from shared.preflight.types import Estimate, InputFile, JobRequest, Machine, Preflight
from shared.tokenization.supervision import SupervisionPass, sample_lines
from shared.tokenization.supervision_report import SupervisionReport
from shared.tokenization.tokenizer import Tokenizer

DEFAULT_NAME = "adapter"
SAMPLED_ROWS = 20_000
SMALLEST_ROW_BYTES = 27
"""Of ``{"prompt":"a","output":"b"}``: a file that has no room for more such rows than are sampled need not be counted."""
NEAR_DUPLICATE_BYTES = 64 << 20
"""Above this size a control plane looks for exact duplicates only."""


def preflight(
    request: JobRequest,
    base: BaseModelEntry,
    base_folder: Path,
    train: InputFile,
    validation: InputFile | None,
    machine: Machine,
    replay: InputFile | None = None,
) -> Preflight:
    """Check a job to the end and plan it.

    Args:
        request: the contract and its presets.
        base: the catalogue's entry of the base model. base_folder: its files.
        train: the training file. validation: the validation file, if there is one.
        machine: what is known of trainer and server.
        replay: the replay file, if there is one.

    Raises:
        MensError: the code of the first thing that makes the job impossible.
    """
    # Before a file is opened: what the contract alone forbids.
    _check_alone(request.contract, machine)
    model = preflight_model(base_folder, tokenizer_mode=TokenizerMode.HF)
    resolve = partial(
        resolve_contract,
        request.contract,
        preset=request.preset,
        domain=request.domain,
        parameters=model.parameters,
        vram_mb=None if machine.vram_bytes is None else machine.vram_bytes >> 20,
    )
    resolution = resolve()
    # The same object when presets and ladder decided nothing: then the gates have seen it already.
    if resolution.contract is not request.contract:
        _check_resolved(resolution, machine)
    context = GateContext(machine.device, model.config.model_type, model.config.layers, rows=None)
    on_gpu = target_device(resolution.contract, context) is not Device.CPU
    length = open_length(request, resolution, model.config, machine, on_gpu=on_gpu)
    seq_len, positions = length.limit if length else resolution.contract.exec.seq_len, model.config.max_positions
    if positions is not None and seq_len > positions:
        raise ContractRejected(
            Code.SEQ_LEN_TOO_LARGE,
            f"exec.seq_len is {seq_len}; the base model has {positions} positions.",
            remedy=f"Set exec.seq_len to {positions} or less.",
            param="exec.seq_len",
        )
    if machine.limits:
        check_servable(resolution.contract, model.config, machine.limits, base_digest=base.digest)
    tokenizer = Tokenizer.load(base_folder)
    data, supervision = _read_data(resolution.contract, seq_len, tokenizer, train, validation, machine)
    replayed = _read_replay(replay, resolution.contract.data)
    rows = data.training.trainable_rows
    # Bounds by rows change the schedule only, and a length from the data is the one at which rows were cut above.
    measured = length.decide(resolution.contract, supervision.longest_row) if length else {}
    if is_small_dataset(rows) or measured:
        resolution = resolve(rows=rows, measured=measured)
    contract = resolution.contract
    context = replace(context, rows=rows)
    plan = plan_finetune(
        contract,
        base,
        _data_file(train, data.training),
        _data_file(validation, data.validation) if validation and data.validation else None,
        request.name or contract.exec.adapter_tag or contract.artifact.alias or DEFAULT_NAME,
        context,
        replay=replayed,
        difficulties=data.training.trainable_difficulties,
    )
    supervision.refuse()
    needs = _estimate(plan, model.config, data.training, supervision, machine, context)
    warnings = [*data.warnings, *supervision.warnings]
    if supervision.truncated_rows:
        warnings.append(
            f"{supervision.truncated_rows} of {supervision.rows} rows are longer than exec.seq_len"
            f" ({contract.exec.seq_len} tokens): their beginning is cut off, in {supervision.cut.lines}."
            " Raise exec.seq_len to keep it."
        )
    served = serving_notes(contract, machine.limits) if machine.limits else []
    return Preflight(
        plan=plan,
        model=model,
        data=data,
        supervision=supervision,
        estimate=needs,
        sources=resolution.sources,
        warnings=warnings,
        notes=list(dict.fromkeys([*plan.notes, *warnings, *model.notes, *data.notes, *served, *needs.notes])),
    )


def _check_alone(contract: FineTuneContract, machine: Machine) -> None:
    """What the contract alone forbids, before a file is opened."""
    # Whether the cap is too low is seen in the plan, once the base's depth is known.
    cap = contract.exec.qlora_proxy_max_layers
    check_gates(contract, GateContext(device=machine.device, model_type="unknown", n_layers=cap, rows=None))
    reject_unsupported(contract)


def _check_resolved(resolution: Resolution, machine: Machine) -> None:
    """The same for fields that presets decided; the error names the preset or profile that set the field."""
    try:
        _check_alone(resolution.contract, machine)
    except ContractRejected as error:
        origin = resolution.sources.get(error.param or "", "explicit")
        if origin in ("explicit", "default"):
            raise
        remedy = f"The {origin} sets {error.param}: choose another {origin}, or set the field yourself."
        raise ContractRejected(
            error.code, error.message, remedy=remedy, param=error.param, details=error.details
        ) from None


def _read_data(
    contract: FineTuneContract,
    seq_len: int,
    tokenizer: Tokenizer,
    train: InputFile,
    validation: InputFile | None,
    machine: Machine,
) -> tuple[DataReport, SupervisionReport]:
    """Read the training file and the validation file, once each: content, rows, duplicates, and what is supervised."""
    filters = RowFilter.of(contract.data)
    chosen, size = None, train.path.stat().st_size
    if not machine.thorough and size > SAMPLED_ROWS * SMALLEST_ROW_BYTES:
        lines = train.lines
        if lines is None:
            with train.path.open("rb") as file:
                lines = count_lines(file)
        chosen = sample_lines(lines, SAMPLED_ROWS)
    supervision = SupervisionPass(tokenizer, seq_len=seq_len, last_k=contract.exec.qlora_ce_last_k, filters=filters)

    def supervise(record: Record, line: int) -> None:
        if chosen is None or line in chosen:
            supervision.add(as_row(record, line))
        else:
            supervision.measure(as_row(record, line))

    hashers = _hasher(train), _hasher(validation)
    report = inspect_file(
        train.path,
        validation=validation.path if validation else None,
        filters=filters,
        mode=contract.data.mode,
        near=machine.thorough or size <= NEAR_DUPLICATE_BYTES,
        observer=supervise,
        hashers=hashers,
    )
    # Changed bytes explain bad lines better than the lines do, so they are refused first.
    _verify(train, hashers[0])
    _verify(validation, hashers[1])
    if error := refusal(report, filters):
        raise error
    lines = report.training.rows + report.training.error_count
    return report, supervision.report(lines, sampled=chosen is not None)


def _read_replay(replay: InputFile | None, wanted: DataSection) -> DataFile | None:
    if replay is None:
        return None
    filters, hasher = RowFilter.of_replay(wanted), _hasher(replay)
    report = inspect_file(replay.path, filters=filters, mode=wanted.mode, near=False, hashers=(hasher, None))
    _verify(replay, hasher)
    if error := refusal(report, filters, "data.replay_file"):
        raise error
    return _data_file(replay, report.training)


def _hasher(file: InputFile | None) -> Hasher | None:
    return sha256() if file and file.verify else None


def _verify(file: InputFile | None, hasher: Hasher | None) -> None:
    if file and hasher and hasher.hexdigest() != file.sha256:
        raise ArtifactInvalid(
            Code.STORAGE_OBJECT_MISSING,
            f"The stored file {file.sha256} is not what was uploaded.",
            remedy="Upload it again, or restore the storage from a backup.",
        )


def _estimate(
    plan: ExecutionPlan,
    config: ModelConfig,
    data: FileReport,
    supervision: SupervisionReport,
    machine: Machine,
    context: GateContext,
) -> Estimate:
    """What the planned job needs, or the refusal of one that does not fit the device."""
    contract = plan.contract
    # On a GPU the trainer recomputes activations, and computes in two bytes.
    on_gpu = target_device(contract, context) is not Device.CPU
    needs = estimate(
        contract,
        config,
        rows=plan.train.rows,
        mean_tokens=supervision.tokens / supervision.rows if supervision.rows else None,
        epoch_rows=rows_per_epoch(
            plan.train.rows - plan.validation_rows,
            contract,
            difficulties=data.trainable_difficulties,
            replay=plan.replay.rows if plan.replay else 0,
        ),
        vram_bytes=machine.vram_bytes,
        tokens_per_second=machine.tokens_per_second,
        checkpointing=on_gpu,
        compute_bytes=2 if on_gpu else 4,
        runtime_bytes=RUNTIME_BYTES if on_gpu else CPU_RUNTIME_BYTES,
    )
    if needs.fits is False:
        nearest = needs.nearest_fit
        raise ContractRejected(
            Code.MEMORY_DOES_NOT_FIT,
            f"The job takes {needs.vram_bytes >> 20} MiB; the device has {(needs.vram_budget or 0) >> 20} MiB for it.",
            remedy=nearest.advice if nearest else needs.notes[-1],
            param="exec.batch_size",
            details={"vram": needs.vram.model_dump(), "nearest_fit": nearest.model_dump() if nearest else None},
        )
    return needs


def _data_file(file: InputFile, found: FileReport) -> DataFile:
    return DataFile(file_id=file.file_id, sha256=file.sha256, bytes=found.bytes, rows=found.trainable_rows)
