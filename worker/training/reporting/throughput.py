"""How fast a run is: pace, time left, and the share of the device's peak that it uses (MFU). Pure but for the clock."""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.base_models.config import ModelConfig
from shared.base_models.families import FULL
from shared.base_models.tensors import linear_layers, parameter_count
from shared.contract.sections import AdapterSection
from shared.preflight.memory import lora_tensors

if TYPE_CHECKING:
    import torch

RATE_SMOOTHING = 0.2
STEPS_BEFORE_ETA = 8

DENSE_BF16_PEAKS = (
    (r"\bB200\b", 2250e12),  # NVIDIA Blackwell architecture brief: 4.5 PFLOP/s with sparsity
    (r"\bGH200\b", 989e12),  # NVIDIA GH200 data sheet; half of the figure with sparsity, as in all lines below
    (r"\bH200 NVL\b", 835e12),  # NVIDIA H200 data sheet
    (r"\bH200\b", 989e12),
    (r"\bH100 PCIe\b", 756e12),  # NVIDIA H100 data sheet
    (r"\bH100 NVL\b", 835e12),
    (r"\bH100\b", 989e12),
    (r"\bA100\b", 312e12),  # NVIDIA A100 data sheet
    (r"\bA30\b", 165e12),  # NVIDIA A30 data sheet
    (r"\bA10\b", 125e12),  # NVIDIA A10 data sheet
    (r"\bL40S\b", 362e12),  # NVIDIA L40S data sheet
    (r"\bL40\b", 181e12),  # NVIDIA L40 data sheet
    (r"\bL4\b", 121e12),  # NVIDIA L4 data sheet
    (r"\bRTX 4090\b", 165e12),  # NVIDIA Ada architecture paper, appendix A: bf16 with fp32 accumulation
    (r"\bRTX 3090\b(?! Ti)", 71e12),  # NVIDIA GA102 architecture paper: bf16 with fp32 accumulation
)
"""Pattern of a device's name → dense bf16 FLOP/s. The first that fits counts; a device that is not here has no MFU."""


def dense_bf16_peak(device_name: str) -> float | None:
    """Peak of a device in FLOP/s by the name that torch gives it; None when it is not known."""
    return next((peak for pattern, peak in DENSE_BF16_PEAKS if re.search(pattern, device_name)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one token costs to train: numbers of a base model and its adapter that decide FLOPs.

    Attributes:
        linears: weights of the frozen linear layers in the blocks, N.
        lora: LoRA parameters.
        attention: n_h · d · L over the layers of full attention. What a linear-attention layer does beside its
            projections is left out, so the MFU of a hybrid model is reported a little low.
        head: hidden size times vocabulary, h · V.
        checkpointing: whether activations are computed twice.
    """

    linears: int
    lora: int
    attention: int
    head: int
    checkpointing: bool

    def flops_per_token(self, attended: float, supervised: float) -> float:
        """FLOPs of forward and backward pass for a token.

        ``4N + 6·lora + 3·(4·n_h·d·L·K) + 4·h·V·t``: a frozen layer has a forward product and one for the gradient of
        its input, a trained one also one for its weight; the head is computed for supervised positions only. With
        checkpointing the blocks' forward pass runs twice: ``+ 2N + 2·lora + 4·n_h·d·L·K``.

        Args:
            attended: K, mean number of keys that a query attends to.
            supervised: t, fraction of the tokens that carry loss.
        """
        keys = 4 * self.attention * attended
        flops = 4 * self.linears + 6 * self.lora + 3 * keys + 4 * self.head * supervised
        return flops + (2 * self.linears + 2 * self.lora + keys if self.checkpointing else 0)


def workload(config: ModelConfig, adapter: AdapterSection, *, checkpointing: bool) -> Workload:
    """The costs of tuning a base model with an adapter."""
    return Workload(
        linears=sum(inputs * outputs for inputs, outputs in linear_layers(config).values()),
        lora=parameter_count(lora_tensors(config, adapter.rank, adapter.target_modules)),
        attention=config.query_dim * config.layer_types.count(FULL),
        head=config.hidden * config.vocab,
        checkpointing=checkpointing,
    )


def peak_bytes(device: torch.device | None = None) -> int:
    """The most memory in bytes that this process has held so far.

    On a GPU that is what torch's allocator reserved, beside the device context; on a CPU, or without a device, the resident
    set of the whole process, Python and libraries included. The two are never to be compared.
    """
    if device is not None and device.type == "cuda":
        import torch

        return torch.cuda.max_memory_reserved(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts KiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a run trains on, as far as telemetry has to know.

    Attributes:
        work: None leaves MFU out.
        peak_flops: dense bf16 FLOP/s of the device; None leaves MFU out.
        peak_memory: the most bytes held so far, on the device or, on a CPU, in the process.
    """

    work: Workload | None = None
    peak_flops: float | None = None
    peak_memory: Callable[[], int] = peak_bytes

    def mfu(self, *, tokens: int, attended_keys: float, targets: int, seconds: float) -> float | None:
        """Model FLOPs utilisation of a step, 0 to 1; None when work or peak is not known, or nothing was computed."""
        if not (self.work and self.peak_flops and tokens):
            return None
        flops = tokens * self.work.flops_per_token(attended_keys / tokens, targets / tokens)
        return flops / max(seconds, 1e-9) / self.peak_flops


class Pace:
    """Measured speed of this process: seconds per step, time between the steps, time left."""

    def __init__(self, total_steps: int) -> None:
        self._total = total_steps
        self._began = self._mark = time.monotonic()
        self._seconds_per_step = 0.0
        self.steps = 0
        self.step_seconds = 0.0

    def mark(self) -> None:
        """What went on since the last step was no step (a validation, a checkpoint): do not count it as one."""
        self._mark = time.monotonic()

    @property
    def wall_seconds(self) -> float:
        """Since the beginning, everything included."""
        return time.monotonic() - self._began

    def step(self) -> float:
        """Note a finished step; returns its seconds."""
        now = time.monotonic()
        seconds, self._mark = max(now - self._mark, 1e-9), now
        self.steps += 1
        self.step_seconds += seconds
        weight = 1.0 if self.steps == 1 else RATE_SMOOTHING
        self._seconds_per_step += weight * (seconds - self._seconds_per_step)
        return seconds

    @property
    def steps_per_second(self) -> float:
        """Smoothed, over steps alone."""
        return 1 / max(self._seconds_per_step, 1e-9)

    def eta_seconds(self, done: int) -> float | None:
        """Time left after ``done`` steps of the run: smoothed step time, and what is spent between steps on average.

        None until enough steps are measured; the first ones are slow.
        """
        if self.steps < STEPS_BEFORE_ETA:
            return None
        between = max(self._mark - self._began - self.step_seconds, 0.0) / self.steps
        return (self._total - done) * (self._seconds_per_step + between)
