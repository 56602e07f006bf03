"""Estimate the needs of a job before it is queued: memory by part, disk, steps, tokens, time. Pure arithmetic.

Figures that follow from shapes are exact (weights, adapter, optimizer, files: tests compare them with real bytes).
Activations are counted from the trainer's own functions; the runtime overhead is a stated allowance. All sizes are bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from statistics import NormalDist

from shared.base_models.config import ModelConfig
from shared.base_models.tensors import expected_tensors, linear_layers, parameter_count
from shared.contract.choices import BaseQuant, OptimizerKind
from shared.contract.contracts import FineTuneContract
from shared.contract.epochs import MOST_WATCHED
from shared.contract.plan import planned_steps, validation_split
from shared.preflight.activations import Recompute, choices_of, dropped_inputs, is_fused, peak_bytes
from shared.preflight.memory import (
    adapter_file_bytes,
    cache_bytes,
    checkpoint_bytes,
    chunk_rows,
    head_bytes,
    lora_tensors,
    merged_bytes,
    moment_bytes,
    nf4_bytes,
    unquantised_bytes,
)
from shared.preflight.training_time import training_time
from shared.preflight.types import Configuration, Disk, Estimate, Machine, NearestFit, Vram
from shared.tokenization.supervision_report import SupervisionReport

RUNTIME_BYTES = 1 << 30
"""Allowance for the device context, library workspaces and the allocator's slack; an assumption, not a measurement."""
CPU_RUNTIME_BYTES = 440 << 20
"""Resident set of Python with torch, transformers and peft, and remains of loading a base, as measured."""
CPU_TOKENS = 8_192
"""Largest number of tokens of a micro-batch of several rows on a CPU."""
CPU_CACHE_FRACTION = 0.25
"""Share of the free memory that dequantised weights may take on a CPU."""
CPU_HEAP_SHARE = 0.3
"""Memory that glibc's heap keeps between the blocks of a step, as a share of activations and logits.

Measured on SmolLM2-135M: 0.05 in the first step, 0.31 to 0.33 in the third; if every large block is mapped separately
(glibc's ``mmap_threshold``), which costs time, the peak equals the sum of the parts within 2 %.
"""
VRAM_FRACTION = 0.85
"""Share of the device that a plan may fill when ``exec.max_vram_fraction`` is not set (specification §3.6)."""
CHECKPOINTS_KEPT = 4
MIN_SEQ_LEN = 64
FORWARD_PASSES = 3
"""Cost of training on a row, in forward passes: one for the forward pass and two for the backward pass."""


def estimate(
    contract: FineTuneContract,
    config: ModelConfig,
    *,
    rows: int,
    mean_tokens: float | None = None,
    epoch_rows: Sequence[int] | None = None,
    vram_bytes: int | None = None,
    machine: Machine | None = None,
    supervised: float = 1.0,
    step_tokens: int | None = None,
    recompute: Recompute = Recompute.NONE,
    on_gpu: bool = True,
    devices: int = 1,
) -> Estimate:
    """Estimate a job.

    Args:
        rows: rows that pass the filters; a validation split is taken from them as the planner does.
        mean_tokens: mean tokens of a row before truncation, when known.
        epoch_rows: rows of each epoch, if curriculum or replay make them differ; otherwise all epochs have the same.
        vram_bytes: memory of the device, when known.
        machine: its speed decides the time; None: unknown.
        supervised: fraction of the tokens that carry loss.
        step_tokens: number of tokens of the largest step, when known: on a CPU a micro-batch never has more.
        recompute: activations that are recomputed in the backward pass.
        on_gpu: whether it trains on a GPU; see :func:`vram_parts`.
        devices: GPUs that share the job, each with ``vram_bytes``.
    """
    exec_ = contract.exec
    requested = Configuration(
        batch_size=exec_.batch_size,
        grad_accum=exec_.grad_accum,
        seq_len=exec_.seq_len,
        recompute=recompute,
        sequences=contract.sequences_per_row,
    )
    budget = None if vram_bytes is None else memory_limit(contract, vram_bytes)
    vram = vram_parts(contract, config, requested, on_gpu=on_gpu)
    if not on_gpu:
        cache = cpu_cache(contract, config, vram.total, free_bytes=vram_bytes, limit_bytes=budget)
        largest = min(step_tokens or cpu_tokens(contract), cpu_tokens(contract))
        vram = vram_parts(
            contract,
            config,
            requested,
            on_gpu=False,
            most_tokens=largest,
            supervised=supervised if step_tokens else 1.0,
        )
        vram = vram.model_copy(update={"dequantised_cache": cache})
    fits = None if budget is None else vram.total <= budget
    nearest = (
        nearest_fit(contract, config, requested, budget, on_gpu=on_gpu, devices=devices)
        if budget and fits is False
        else None
    )
    disk = disk_parts(contract, config)
    if epoch_rows is None:
        data = contract.data
        held_out = 0 if data.validation_file else validation_split(rows, data.validation_split_ratio)
        epoch_rows = [rows - held_out] * exec_.epochs
    row_tokens = exec_.seq_len * contract.sequences_per_row
    tokens = None if mean_tokens is None else round(sum(epoch_rows) * min(mean_tokens, row_tokens))
    steps = planned_steps(epoch_rows, contract)
    time = training_time(
        contract,
        config,
        machine or Machine(),
        steps=steps,
        tokens=tokens and round(tokens * (1 + _reference_share(contract) + _replay_share(contract, epoch_rows))),
        supervised=supervised,
        recompute=recompute,
        on_gpu=on_gpu,
    )
    return Estimate(
        configuration=requested,
        vram=vram,
        vram_bytes=vram.total,
        vram_budget=budget,
        disk=disk,
        disk_bytes=disk.total,
        parameters=parameter_count(expected_tensors(config)),
        trainable_parameters=vram.adapter // 4,
        optimizer_steps=steps,
        tokens=tokens,
        max_tokens=sum(epoch_rows) * row_tokens,
        seconds=time.seconds,
        time=time,
        fits=fits,
        nearest_fit=nearest,
        notes=tuple(_notes(config, exec_.seq_len, fits=fits, nearest=nearest)),
    )


def vram_parts(
    contract: FineTuneContract,
    config: ModelConfig,
    configuration: Configuration,
    *,
    on_gpu: bool = True,
    most_tokens: int | None = None,
    supervised: float = 1.0,
    kernels: bool = True,
) -> Vram:
    """Return the memory of one process in a configuration, independent of the contract's batch, accumulation and
    length.

    Args:
        on_gpu: whether it trains on a GPU, where the trainer computes in two bytes instead of four, and where its own
            share is an assumed allowance instead of the measured resident set of Python with torch and transformers.
        most_tokens: largest number of tokens that a micro-batch can have, if the rows are known.
        supervised: fraction of the tokens that has logits.
        kernels: whether Triton's kernels run on the GPU. A plan is made without the GPU, and assumes that they do.
    """
    compute_bytes, holders = 2 if on_gpu else 4, configuration.holders
    adapter, lora = contract.adapter, lora_tensors(config, contract.adapter.rank, contract.adapter.target_modules)
    parameters = parameter_count(lora)
    tokens = configuration.batch_size * configuration.seq_len * configuration.sequences
    tokens = tokens if most_tokens is None else min(tokens, most_tokens)
    eight_bit = contract.optimizer.kind is OptimizerKind.PAGED_ADAMW_8BIT
    quantised = contract.quant.base is not BaseQuant.NONE
    blocks = sum(
        nf4_bytes(inputs * outputs, double_quant=contract.quant.double_quant)
        if quantised
        else inputs * outputs * compute_bytes
        for inputs, outputs in linear_layers(config).values()
    )
    # If the base is held in parts, one block is whole at a time; all else is on every GPU.
    held = blocks if holders == 1 else blocks // holders + blocks // config.layers
    logits = min(math.ceil(tokens * supervised), chunk_rows(config.vocab)) * head_bytes(config, compute_bytes)
    activations = peak_bytes(
        config,
        adapter.rank,
        compute_bytes,
        tokens=tokens,
        logits=logits,
        recompute=configuration.recompute,
        fused=is_fused(contract, config),
        kernels=kernels,
        dropped=dropped_inputs(contract, config),
    )
    return Vram(
        quantised_weights=held if quantised else 0,
        other_weights=unquantised_bytes(config, compute_bytes) + (0 if quantised else held),
        dequantised_cache=0,
        adapter=4 * parameters,
        gradients=4 * parameters,
        optimizer=sum(moment_bytes(math.prod(shape), eight_bit=eight_bit) for shape in lora.values()),
        activations=activations,
        logits=logits,
        heap=0 if on_gpu else math.ceil(CPU_HEAP_SHARE * (activations + logits)),
        runtime=RUNTIME_BYTES if on_gpu else CPU_RUNTIME_BYTES,
    )


def cpu_tokens(contract: FineTuneContract) -> int:
    """Return the largest number of tokens of a micro-batch on a CPU with enough memory: the contract's batch, padded, within a
    bound.
    """
    longest = longest_row(contract)
    return max(longest, min(CPU_TOKENS, contract.exec.batch_size * longest))


def longest_row(contract: FineTuneContract) -> int:
    """Return the largest number of tokens of a row; a pair has two sequences."""
    return contract.exec.seq_len * contract.sequences_per_row


def _reference_share(contract: FineTuneContract) -> float:
    """Return the cost of forward passes without gradients as a share of the training's cost: one pass over every row
    for the reference's scores. Rated answers need two, because each is also scored after another prompt, and one more
    in each epoch, because the policy scores it after the other prompt too.
    """
    if not contract.has_preferences:
        return 0.0
    passes = 1 / contract.exec.epochs if contract.has_pairs else 1 + 2 / contract.exec.epochs
    return passes / FORWARD_PASSES


def _replay_share(contract: FineTuneContract, epoch_rows: Sequence[int]) -> float:
    """Return an upper bound on the cost of watching rows of the replay file (a forward pass over each before every
    epoch), as a share of the training's cost; the file may have fewer rows.
    """
    if not contract.data.replay_file or len(epoch_rows) == 1 or not sum(epoch_rows):
        return 0.0
    ratio = contract.data.replay_ratio
    watched = min(2 * max(epoch_rows) * ratio / (1 + ratio), MOST_WATCHED)
    return watched * len(epoch_rows) / (FORWARD_PASSES * sum(epoch_rows))


def cpu_cache(
    contract: FineTuneContract,
    config: ModelConfig,
    needed: int,
    *,
    free_bytes: int | None,
    limit_bytes: int | None,
) -> int:
    """Return the bytes of the dequantised weights that training on a CPU keeps; 0 if they are large or do not fit.

    Args:
        needed: bytes needed without them.
        free_bytes: free memory of the machine.
        limit_bytes: bytes that the job may take; None: not known.
    """
    cache = cache_bytes(contract, config, element_bytes=4)
    little = free_bytes is None or cache <= CPU_CACHE_FRACTION * free_bytes
    return cache if little and (limit_bytes is None or needed + cache <= limit_bytes) else 0


def largest_step(contract: FineTuneContract, report: SupervisionReport) -> int | None:
    """Estimate the tokens of a run's largest optimizer step, a sum of rows drawn without replacement.

    A step has different rows in each epoch, so the largest is unknown: it is estimated as the expected maximum of a
    gamma distribution, drawn once per step of the run (Blom's approximation, and Wilson and Hilferty's), because
    lengths have a tail on one side. A row counts with the middle of its bucket in the histogram.
    """
    if not report.rows:
        return None
    limit, rows = contract.exec.seq_len, contract.exec.batch_size * contract.exec.grad_accum
    longest, rows = min(report.longest_row, limit) * contract.sequences_per_row, min(rows, report.rows)
    steps = contract.exec.epochs * math.ceil(report.rows / rows)
    mean, spread = report.tokens / report.rows, 0.0
    for bucket in report.token_histogram:
        middle = (min(bucket.up_to // 2, longest) + min(bucket.up_to, longest)) / 2
        spread += bucket.rows * (middle - mean) ** 2
    variance = rows * (spread / report.rows) * (report.rows - rows) / max(report.rows - 1, 1)
    deviations = NormalDist().inv_cdf((steps - 0.375) / (steps + 0.25))
    relative = variance / (mean * rows) ** 2
    largest = mean * rows * (1 - relative / 9 + deviations * math.sqrt(relative) / 3) ** 3
    return math.ceil(max(longest, min(largest, longest * rows)))


def memory_limit(contract: FineTuneContract, memory_bytes: int) -> int:
    """Return the bytes that the job may fill on a device with this much memory."""
    return math.floor(memory_bytes * (contract.exec.max_vram_fraction or VRAM_FRACTION))


def disk_parts(contract: FineTuneContract, config: ModelConfig) -> Disk:
    """Return the storage of a job; a run may write fewer checkpoints, so this is an upper bound."""
    lora = lora_tensors(config, contract.adapter.rank, contract.adapter.target_modules)
    base = merged_bytes(config)
    return Disk(
        base=base,
        checkpoints=CHECKPOINTS_KEPT * checkpoint_bytes(lora),
        adapter=adapter_file_bytes(lora),
        merge=base,
    )


def nearest_fit(
    contract: FineTuneContract,
    config: ModelConfig,
    requested: Configuration,
    budget: int,
    *,
    on_gpu: bool = True,
    devices: int = 1,
) -> NearestFit | None:
    """Return the configuration nearest to the requested one that needs at most ``budget`` bytes per device; None if
    none does.

    First the batch is halved and accumulation doubled, which leaves the result as it is (the loss weighs every token
    the same); then activations are recomputed, norms and MLPs before whole blocks, with the batch as large as fits;
    then the devices hold the base in parts; finally, rows are shortened. The trainer does all but the last on its own
    (`worker/training/model/memory_budget.py`).
    """
    # Changes of the result are outermost, neutral changes innermost: the first hit is the mildest change.
    seq_len = requested.seq_len
    while seq_len == requested.seq_len or seq_len >= MIN_SEQ_LEN:
        shorter = requested.model_copy(update={"seq_len": seq_len})
        for tried in _same_result(shorter, devices, choices_of(contract, config)):
            needed = vram_parts(contract, config, tried, on_gpu=on_gpu).total
            if needed <= budget:
                shortened, advice = seq_len != requested.seq_len, _advice(requested, tried)
                return NearestFit(configuration=tried, vram_bytes=needed, changes_result=shortened, advice=advice)
        seq_len //= 2
    return None


def _same_result(requested: Configuration, devices: int, choices: Sequence[Recompute]) -> Iterator[Configuration]:
    """Iterate over configurations with the result of the requested one, the mildest change first."""
    pairs = same_effective_batch(requested.batch_size, requested.grad_accum)
    more = [choice for choice in choices if choice.rank >= requested.recompute.rank]
    for holders, recompute, (batch_size, grad_accum) in product(sorted({requested.holders, devices}), more, pairs):
        changes = {"batch_size": batch_size, "grad_accum": grad_accum}
        yield requested.model_copy(update=changes | {"recompute": recompute, "holders": holders})


def same_effective_batch(batch_size: int, grad_accum: int) -> list[tuple[int, int]]:
    """Return (batch, accumulation) pairs with one product: the batch is halved while it is even; then single rows."""
    pairs = [(batch_size, grad_accum)]
    while pairs[-1][0] % 2 == 0:
        pairs.append((pairs[-1][0] // 2, pairs[-1][1] * 2))
    if pairs[-1][0] > 1:
        pairs.append((1, batch_size * grad_accum))
    return pairs


def _advice(requested: Configuration, fitting: Configuration) -> str:
    steps = []
    if fitting.batch_size != requested.batch_size:
        steps.append(f"set exec.batch_size to {fitting.batch_size} and exec.grad_accum to {fitting.grad_accum}")
    if fitting.recompute is not requested.recompute:
        activations = (
            "whole blocks (gradient checkpointing)" if fitting.recompute is Recompute.BLOCKS else "norms and MLPs"
        )
        steps.append(f"recompute activations of {activations}")
    if fitting.holders != requested.holders:
        steps.append(f"hold the base in parts on {fitting.holders} GPUs")
    if fitting.seq_len != requested.seq_len:
        steps.append(f"set exec.seq_len to {fitting.seq_len}, which truncates longer rows and so changes the result")
    text = "; ".join(steps)
    return f"{text[:1].upper()}{text[1:]}."


def _notes(config: ModelConfig, seq_len: int, *, fits: bool | None, nearest: NearestFit | None) -> list[str]:
    notes = []
    if config.max_positions and seq_len > config.max_positions:
        notes.append(f"exec.seq_len {seq_len} is longer than the {config.max_positions} positions of the base.")
    if fits is False and nearest is None:
        notes.append(
            "No batch size or length fits: weights, adapter and the runtime's own share already exceed the memory."
        )
    return notes
