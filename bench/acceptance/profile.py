"""Time of a micro-batch's kernels by group, compared with the modelled step: ``python -m bench.acceptance.profile
kernels DEVICE SIZE``.
"""

from __future__ import annotations

import re
from collections import defaultdict

import torch
from torch.profiler import ProfilerActivity, profile

from bench.acceptance.results import Goal, PartResult, run_part
from bench.acceptance.timing import seconds_of
from bench.training.counted_model import config_of, counted_model, micro_batch
from bench.training.paper_step import CARDS, DIVISOR, count_step
from bench.training.shapes import SHAPES
from bench.training.step_counter import ATTENTION, ELEMENTWISE, GROUPS, NF4, PRODUCTS, Card
from worker.training.supervised import SupervisedMethod

NAMES = {
    ATTENTION: r"flash|attention|fmha|attn",
    NF4: r"quantize|bitsandbytes",
    PRODUCTS: r"gemm|cutlass|nvjet|cublas|xmma|splitk|mm$|mm_$",
}
"""Patterns of kernel names, tried in this order; all other kernels are elementwise."""
CARD_NAMES = {r"H100|H200|^cpu$": "h100", r"A100": "a100", r"4090": "rtx4090"}
"""Cards whose assumed rates are known; on a CPU any of them is used, because the figures mean nothing there."""
ROWS, TOKENS = 2, {"cuda": 2048, "cpu": 128}
SLOWER = 1.25
"""Largest allowed time, as a multiple of the modelled time."""


def group_of(kernel: str) -> str:
    """Return the group of a kernel, given its name."""
    return next((group for group, names in NAMES.items() if re.search(names, kernel, re.IGNORECASE)), ELEMENTWISE)


def card_of(name: str) -> Card | None:
    """Return the assumed rates of a card, given the name that its driver reports; None if they are unknown."""
    return next((CARDS[card] for names, card in CARD_NAMES.items() if re.search(names, name)), None)


def kernels(device: str, size: str) -> PartResult:
    """Profile one micro-batch, forward and backward, of the model whose step is modelled."""
    where, config, tokens = torch.device(device), config_of(SHAPES[size]), TOKENS[device]
    model, batch = counted_model(config, device=where), micro_batch(ROWS, tokens)
    activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU

    def pass_both_ways() -> None:
        SupervisedMethod().loss(model, batch, where, DIVISOR).loss.backward()

    wall = seconds_of(pass_both_ways, device)
    with profile(activities=[activity]) as profiler:
        pass_both_ways()
        if device == "cuda":
            torch.cuda.synchronize()
    seconds: dict[str, float] = defaultdict(float)
    for event in profiler.key_averages():
        own = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        seconds[group_of(event.key)] += own / 1e6
    card = card_of(torch.cuda.get_device_name() if device == "cuda" else device)
    if card is None:
        return PartResult({f"{group}, ms": seconds[group] * 1e3 for group in GROUPS} | {"wall, ms": wall * 1e3})
    paper = count_step(config, card, ROWS, tokens)
    figures: dict[str, float | str] = {
        group: f"{seconds[group] * 1e3:.1f} ms of {paper.groups[group].seconds * 1e3:.1f};" for group in GROUPS
    }
    facts = {group: [seconds[group], paper.groups[group].seconds] for group in GROUPS}
    goal = Goal(
        "A3-paper",
        sum(seconds.values()) / paper.total.seconds,
        SLOWER,
        facts={"measured_and_modelled": facts, "wall": wall},
    )
    return PartResult(figures | {"wall, ms": wall * 1e3}, [goal])


PARTS = {"kernels": kernels}

if __name__ == "__main__":
    run_part(PARTS)
