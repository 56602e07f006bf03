"""Decide ``exec.seq_len`` if it is left out: the data's longest row, within the bounds of base and memory.

The contract's own default would silently cut the beginning of longer rows, system text first. Pure arithmetic: the
supervision report shows which rows are still truncated.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shared.base_models.config import ModelConfig, parse_model_config
from shared.contract.choices import DeploymentTarget
from shared.contract.contracts import FineTuneContract
from shared.contract.preset_files import Values
from shared.contract.presets import Resolution
from shared.contract.refusals import MOBILE_LIMITS
from shared.errors import MensError
from shared.preflight.activations import Recompute
from shared.preflight.estimate import memory_limit, same_effective_batch, vram_parts
from shared.preflight.types import Configuration, JobRequest, Machine

STEP = 256
"""Granularity of a length in tokens, so that slightly different data gets the same plan."""
UNKNOWN_MEMORY_TOKENS = 4_096
"""Longest row on a device with unknown memory."""
MOST_TOKENS = 1 << 26
"""A number of tokens larger than any device has room for."""


@dataclass(frozen=True, slots=True)
class OpenLength:
    """A length that the data will determine.

    Attributes:
        limit: largest number of tokens of a row.
        tokens: largest number of tokens of a micro-batch on the device; None if its memory is unknown.
        may_split: whether a step's rows may be divided into smaller micro-batches.
        sequences: number of sequences per row: two for a pair of answers.
    """

    limit: int
    tokens: int | None
    may_split: bool
    sequences: int = 1

    def decide(self, contract: FineTuneContract, longest: int) -> Values:
        """Return values by field path, for data whose longest row has this many tokens."""
        exec_ = contract.exec
        seq_len = min(self.limit, STEP * max(1, math.ceil(longest / STEP)))
        values: Values = {"exec.seq_len": seq_len}
        if self.may_split and self.tokens is not None:
            pairs = same_effective_batch(exec_.batch_size, exec_.grad_accum)
            batch, accumulated = next(
                (pair for pair in pairs if pair[0] * seq_len * self.sequences <= self.tokens), pairs[-1]
            )
            if batch != exec_.batch_size:
                values |= {"exec.batch_size": batch, "exec.grad_accum": accumulated}
        return values


def length_without_job(folder: Path) -> int:
    """Return the length at which rows are truncated outside a job: that of a device with unknown memory.

    Args:
        folder: the base's folder; one with a tokenizer alone is enough.
    """
    positions = None
    with suppress(MensError, OSError, ValueError):
        positions = parse_model_config(json.loads((folder / "config.json").read_bytes())).max_positions
    return min(positions or UNKNOWN_MEMORY_TOKENS, UNKNOWN_MEMORY_TOKENS)


def open_length(
    request: JobRequest, resolution: Resolution, config: ModelConfig, machine: Machine, *, on_gpu: bool
) -> OpenLength | None:
    """Return the bounds of the length that the data will decide; None if caller, preset or profile has decided it."""
    contract = resolution.contract
    fixed = {path for path, source in resolution.sources.items() if source == "explicit"} - request.auto
    if request.preset or request.domain or "exec.seq_len" in fixed:
        return None
    may_split = request.batch_is_step or not fixed & {"exec.batch_size", "exec.grad_accum"}
    tokens = None
    limits = [config.max_positions or UNKNOWN_MEMORY_TOKENS]
    if contract.artifact.deployment_target is DeploymentTarget.MOBILE_EDGE:
        limits.append(MOBILE_LIMITS["exec.seq_len"])
    if machine.memory(on_gpu=on_gpu) is None:
        limits.append(UNKNOWN_MEMORY_TOKENS)
    else:
        tokens = _tokens_that_fit(contract, config, machine, on_gpu=on_gpu)
        rows = contract.sequences_per_row * (1 if may_split else contract.exec.batch_size)
        # A job that does not fit at all is refused by the estimate, which names a fitting configuration.
        limits.append(max(STEP, tokens // rows // STEP * STEP))
    return OpenLength(min(limits), tokens, may_split, contract.sequences_per_row)


def _tokens_that_fit(contract: FineTuneContract, config: ModelConfig, machine: Machine, *, on_gpu: bool) -> int:
    """Return the tokens of the largest micro-batch, with recomputed activations and the base in parts if GPUs share the
    job.
    """
    budget = memory_limit(contract, machine.memory(on_gpu=on_gpu) or 0)
    holders = machine.sharers(contract, on_gpu=on_gpu)

    def needed(tokens: int) -> int:
        one_row = Configuration(batch_size=1, grad_accum=1, seq_len=tokens, recompute=Recompute.BLOCKS, holders=holders)
        return vram_parts(contract, config, one_row, on_gpu=on_gpu).total

    # Memory grows with tokens, at a rate that changes where the logits are no longer the largest part of its peak.
    return max(0, bisect_right(range(MOST_TOKENS), budget, key=needed) - 1)
