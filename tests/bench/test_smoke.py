"""Every bench runs all of its variants, at its smallest size, with its real peers and servers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from bench.harness.peers import peers_python
from bench.harness.processes import fork_server
from tests.support.bench_runs import RUN, check_printed, run_smoke

pytestmark = [pytest.mark.bench, pytest.mark.timeout(660)]

RUNS = {
    "bench.data": (
        "C3-memory C3-report C3-near C3-errors C3-convert C3-convert-memory C2",
        "report|report-near|datasets|check|check-bad|orjson|pydantic|convert|report-lenient|  mens|  mens, tokenizers|  trl, 1 process|  trl, 2 processes",
    ),
    "bench.corpus": (
        "K1 K2 K3 K4 K5 K6 K7 K8 K9",
        "mix|datatrove|build|rebuild|pull|copy|extract|parse|filters|decontaminate|n-grams|columns|generate|client",
    ),
    "bench.train": ("C1 C1-trl", "mens|hf|trl|TRL, tokens per CPU second: packed"),
    "bench.train --quant none --trl-settings single": ("C1-none C1-none-trl", "mens|hf|trl"),
    "bench.preference": ("D1 D2", "mens|trl|forward|TRL, CPU seconds of the first steps: batch"),
    "bench.gpu --device cpu --size tiny": (
        "G1 G1-naive G2 G3-cache G3-nf4 G4 G4-estimate G5",
        "mens|mens-nf4|mens-cache|mens-bf16|mens-quiet|hf|trl-packed|trl-packed-large|trl-padding-free",
    ),
    "bench.gpu --device cpu --acceptance parity": (
        "A1-nf4 A1-nf4-codes A1-attention A1-attention-kernel A1-linear-attention A1-lora A1-kernels A1-marked",
        "nf4|attention|linear attention|lora|kernels|marked tests",
    ),
    "bench.gpu --device cpu --acceptance loop": (
        "A2-steps A2-resume A2-retries A2-memory A2-loss",
        "train|resume|out of memory|peer",
    ),
    "bench.gpu --device cpu --acceptance speed": (
        "G1 G1-naive G2 G3-cache G3-nf4 G4 G4-estimate G5 A3-paper",
        "inputs and peak|mens|kernels|trl-packed-large|mens-nf4|mens-cache|mens-bf16|mens-quiet|hf",
    ),
    "bench.gpu --device cpu --acceptance memory": ("G4-estimate", "tiny"),
    "bench.gpu --device cpu --acceptance scan": (
        "A5-own-values A5-growth A5-triton-values A5-triton-speed A5-fla-values A5-speed",
        "reference|own|triton|fla",
    ),
    "bench.gpu --device cpu --acceptance kernels": (
        "A6",
        "norm and sum|norm of queries|rotary embeddings|SwiGLU|convolution|delta rule",
    ),
    "bench.roofline": (
        "P1",
        "matrix products|attention|NF4 to bf16|elementwise|now|recompute mlps|recompute blocks|torch",
    ),
    "bench.roofline --model qwen3.5-4b": ("P2", "now|recompute mlps|recompute blocks|torch|reference"),
    "bench.merge": ("C4", "mens|peft-f32|peft-bf16"),
    "bench.equal_runs": ("T1", "two-threads"),
    "bench.gateway": ("C7 C7-names", "direct|gateway|bare|names|foreign"),
    "bench.poll": ("C5 C5-load-ms C5-load", "unchanged|changed|constant|quiet|busy"),
    "bench.evaluate": ("C9 C9-sandbox", "evaluation|bare client|sandbox,"),
    "bench.queue": ("C8 C8-poll", "bare|job|alone|queued"),
}
"""By command: the goals of its JSON lines, and the first column of its tables. `tests/system/test_bench.py` has most of those that
need an installation.
"""
LONG = {
    "bench.console": ("W1 W2 W3 W4 W5 W6 W7 W8 W9", "mens|mlflow|tensorboard|blank|hidden"),
}
"""Two peers' servers take a minute to start: `make long` has it, CI does not."""
REAL = {
    "bench.train --base smollm2": ("C1-real C1-real-trl C1-real-memory", "mens|hf|trl"),
    "bench.train --base smollm2 --quant nf4": (
        "C1-real-nf4 C1-real-nf4-trl C1-real-nf4-memory",
        "mens|hf|trl",
    ),
}
"""The same on the real base: `make experiments`."""


@pytest.fixture(scope="module")
def servers() -> Iterator[Iterator[subprocess.Popen[bytes]]]:
    """A process that all benches fork their variants from, so that the slow libraries are imported once; another one
    whenever it has ended.
    """
    with ExitStack() as stack:

        def running() -> Iterator[subprocess.Popen[bytes]]:
            while True:
                server = stack.enter_context(fork_server(peers_python(), **{RUN: uuid4().hex}))
                while server.poll() is None:
                    yield server

        yield running()


@pytest.mark.parametrize(
    "command",
    [
        *RUNS,
        *(pytest.param(command, marks=[pytest.mark.long, pytest.mark.experiment]) for command in LONG),
        *(pytest.param(command, marks=pytest.mark.experiment) for command in REAL),
    ],
)
def test_smoke_run_has_every_variant_and_goal(
    tmp_path: Path, servers: Iterator[subprocess.Popen[bytes]], command: str
) -> None:
    expected, rows = {**RUNS, **LONG, **REAL}[command]
    check_printed(run_smoke(tmp_path, *command.split(), server=next(servers)), expected, rows)
