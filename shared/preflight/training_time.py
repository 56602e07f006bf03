"""Training time of a job: measured by an earlier job on the base, otherwise estimated and labelled as a guess. Pure
arithmetic.

The tiers are the original's: measured speed, FLOPs of the model over the device's speed, 200 ms per step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shared.base_models.config import ModelConfig
from shared.base_models.families import FULL
from shared.base_models.tensors import linear_layers, lora_modules, parameter_count
from shared.contract.contracts import FineTuneContract
from shared.contract.sections import AdapterSection
from shared.preflight.activations import Recompute
from shared.preflight.memory import lora_tensors
from shared.preflight.types import Machine, TrainingTime

SECONDS_PER_STEP = 0.2
"""Seconds per step in the original's last tier."""
GPU_SHARE = 0.3
"""Share of a GPU's dense bf16 peak that training an adapter is expected to reach."""
CPU_CORE_FLOPS = 40e9
"""FLOP/s in fp32 that one core of a server is expected to reach."""

DENSE_BF16_PEAKS = (
    (r"\bGB[23]00\b", 2500e12),  # NVIDIA GB200 and GB300 NVL72 data sheets; half of the figure with sparsity
    (r"\bB[23]00\b", 2250e12),  # NVIDIA Blackwell architecture brief: 4.5 PFLOP/s with sparsity
    (
        r"\bGH200\b",
        989e12,
    ),  # NVIDIA GH200 data sheet; half of the figure with sparsity, as in all lines of data sheets below
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
    (r"\bA40\b", 150e12),  # NVIDIA A40 data sheet
    (r"\bRTX A6000\b", 155e12),  # NVIDIA RTX A6000 data sheet
    (r"\bRTX 6000 Ada\b", 364e12),  # NVIDIA RTX 6000 Ada data sheet: a quarter of its figure for FP8 with sparsity
    (r"\bRTX PRO 6000 Blackwell (?!Max-Q)", 500e12),  # its data sheet: an eighth of its figure for FP4 with sparsity
    # GeForce: bf16 with fp32 accumulation, half of the rate that the papers call FP16.
    (r"\bRTX 5090\b(?! D)", 209e12),  # NVIDIA RTX Blackwell architecture paper, as the two lines below
    (r"\bRTX 5080\b", 113e12),
    (r"\bRTX 5070 Ti\b", 88e12),
    (r"\bRTX 4090\b(?! D)", 165e12),  # NVIDIA Ada architecture paper, appendix A, as the line below
    (r"\bRTX 4080\b(?! SUPER)", 97.5e12),
    (r"\bRTX 3090 Ti\b", 80e12),  # twice its fp32 rate, as for the RTX 3090
    (r"\bRTX 3090\b", 71e12),  # NVIDIA GA102 architecture paper: bf16 with fp32 accumulation
)
"""Pattern of a device's name → dense bf16 FLOP/s. The first match counts; a device without one has no MFU."""
REDUCED = re.compile(r"\bMIG\b|\bLaptop\b")
"""Names of partitioned or power-limited devices, whose own peak is unknown."""


def dense_bf16_peak(device_name: str) -> float | None:
    """Return the peak of a device in FLOP/s by its name in torch; None if it is unknown."""
    if REDUCED.search(device_name):
        return None
    return next((peak for pattern, peak in DENSE_BF16_PEAKS if re.search(pattern, device_name)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Cost of training one token: numbers of a base model and its adapter that decide FLOPs.

    Attributes:
        linears: weights of the frozen linear layers in the blocks, N.
        lora: LoRA parameters.
        attention: n_h · d · L over the layers of full attention. A linear-attention layer's work besides its
            projections is left out, so the MFU of a hybrid model is reported a little low.
        head: hidden size times vocabulary, h · V.
        recompute: activations that are recomputed.
        mlps: number of weights of gate and up, and of their B's, which are used twice if MLPs are recomputed.
    """

    linears: int
    lora: int
    attention: int
    head: int
    recompute: Recompute = Recompute.NONE
    mlps: int = 0

    def flops_per_token(self, attended: float, supervised: float) -> float:
        """Return the FLOPs of forward and backward pass for a token.

        ``4N + 6·lora + 3·(4·n_h·d·L·K) + 4·h·V·t``: a frozen layer has one product in the forward pass and one for the
        gradient of its input, a trained layer also one for the gradient of its weight; the head is computed for
        supervised positions only. If blocks are recomputed their forward pass runs twice: ``+ 2N + 2·lora +
        4·n_h·d·L·K``; of MLPs two products do.

        Args:
            attended: K, mean number of keys that a query attends to.
            supervised: t, fraction of the tokens that carry loss.
        """
        keys = 4 * self.attention * attended
        flops = 4 * self.linears + 6 * self.lora + 3 * keys + 4 * self.head * supervised
        again = {Recompute.MLPS: 2 * self.mlps, Recompute.BLOCKS: 2 * self.linears + 2 * self.lora + keys}
        return flops + again.get(self.recompute, 0)


def workload(config: ModelConfig, adapter: AdapterSection, *, recompute: Recompute = Recompute.NONE) -> Workload:
    """Return the costs of tuning a base model with an adapter."""
    wide = ("mlp.gate_proj", "mlp.up_proj")
    ups = {
        name: sizes[1] for name, sizes in lora_modules(config, adapter.target_modules).items() if name.endswith(wide)
    }
    frozen = sum(inputs * outputs for name, (inputs, outputs) in linear_layers(config).items() if name.endswith(wide))
    return Workload(
        linears=sum(inputs * outputs for inputs, outputs in linear_layers(config).values()),
        lora=parameter_count(lora_tensors(config, adapter.rank, adapter.target_modules)),
        attention=config.query_dim * config.layer_types.count(FULL),
        head=config.hidden * config.vocab,
        recompute=recompute,
        mlps=frozen + adapter.rank * sum(ups.values()),
    )


def training_time(
    contract: FineTuneContract,
    config: ModelConfig,
    machine: Machine,
    *,
    steps: int,
    tokens: int | None,
    supervised: float,
    recompute: Recompute,
    on_gpu: bool,
) -> TrainingTime:
    """Estimate the seconds of training, with their basis.

    Args:
        steps: optimizer steps of the job.
        tokens: trained tokens of all epochs, when known.
        supervised: fraction of the tokens that carry loss.
        recompute: activations that are recomputed in the backward pass.
        on_gpu: whether the job trains on the machine's GPU.
    """
    if tokens is not None and machine.tokens_per_second:
        job = f"by {machine.measured_by}" if machine.measured_by else "by an earlier job"
        return TrainingTime(
            seconds=tokens / machine.tokens_per_second,
            basis="measured",
            other_seconds=machine.other_seconds,
            reason=f"measured on this base {job}: {machine.tokens_per_second:.0f} tokens per second",
        )
    speed = _device_flops(machine, on_gpu=on_gpu)
    if tokens is not None and speed is not None:
        work = workload(config, contract.adapter, recompute=recompute)
        # A row's keys: half of its length on average; the longest length bounds it.
        flops = work.flops_per_token(contract.exec.seq_len / 2, supervised)
        return TrainingTime(
            seconds=tokens * flops / speed,
            basis="flops",
            reason=f"from FLOPs, a guess: {flops / 1e9:.2g} GFLOP per token at {speed / 1e9:.0f} GFLOP/s; "
            "no measured job of this base is known here",
        )
    device = f"the speed of {machine.device_name} is" if on_gpu and machine.device_name else "the device's speed is"
    missing = "the rows' tokens are" if tokens is None else device
    return TrainingTime(
        seconds=steps * SECONDS_PER_STEP,
        basis="steps",
        reason=f"{SECONDS_PER_STEP * 1000:.0f} ms per step, a guess: {missing} not known",
    )


def _device_flops(machine: Machine, *, on_gpu: bool) -> float | None:
    """Return the FLOP/s that training is expected to reach; None if the device is unknown."""
    if on_gpu:
        peak = dense_bf16_peak(machine.device_name)
        return None if peak is None else GPU_SHARE * peak * max(1, machine.devices)
    return None if machine.cores is None else CPU_CORE_FLOPS * machine.cores
