"""The sources of the time estimate, each with its name; and the tokens of a step on which the memory on a CPU is based."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import cli.this_machine
from cli.this_machine import this_machine
from shared.base_models.config import parse_model_config
from shared.contract.contracts import FineTuneContract
from shared.preflight.activations import Recompute
from shared.preflight.estimate import estimate, largest_step, vram_parts
from shared.preflight.memory import cache_bytes
from shared.preflight.training_time import CPU_CORE_FLOPS, GPU_SHARE, dense_bf16_peak, workload
from shared.preflight.types import Configuration, Machine, TrainingTime
from shared.tokenization.supervision_report import Bucket, SupervisionReport
from tests.support import base_configs
from tests.support.builders import contract
from tests.support.pretended_gpu import MACHINES, RTX_4090, pretend

QWEN3_8B = parse_model_config(base_configs.QWEN3_8B)
CPU = Machine("cpu", cores=4)
H100 = Machine("cuda", device_name="NVIDIA H100 80GB HBM3")


def time_on(machine: Machine, *, mean_tokens: float | None = 80.0) -> TrainingTime:
    on_gpu = machine.device != "cpu"
    return estimate(contract(), QWEN3_8B, rows=100, mean_tokens=mean_tokens, machine=machine, on_gpu=on_gpu).time


def test_every_tier_names_its_basis() -> None:
    measured = time_on(Machine("cpu", cores=4, tokens_per_second=100.0, measured_by="ftjob-7"))
    assert measured.basis == "measured"
    assert measured.reason.startswith("measured on this base by ftjob-7")
    for machine in (CPU, H100):
        guess = time_on(machine)
        assert guess.basis == "flops"
        assert guess.reason.startswith("from FLOPs, a guess")
    unknown_device, unknown_rows = time_on(Machine("cuda")), time_on(CPU, mean_tokens=None)
    assert unknown_device.basis == unknown_rows.basis == "steps"
    assert unknown_device.reason == "200 ms per step, a guess: the device's speed is not known"
    unknown_peak = time_on(Machine("cuda", device_name="NVIDIA A16"))
    assert unknown_peak.reason == "200 ms per step, a guess: the speed of NVIDIA A16 is not known"
    assert unknown_rows.reason == "200 ms per step, a guess: the rows' tokens are not known"


def test_a_time_says_what_it_covers() -> None:
    measured = Machine("cpu", tokens_per_second=100.0, measured_by="ftjob-7", other_seconds=61.0)
    found = time_on(measured)
    assert found.whole_seconds == found.seconds + 61
    assert found.describe().startswith("training about ")
    assert found.describe().endswith("; and about 61 s for loading, evaluation and publishing, as in that job")
    for machine in (CPU, replace(measured, other_seconds=None)):
        assert time_on(machine).describe().endswith("; without loading, evaluation and publishing")


@pytest.mark.parametrize(
    ("machine", "flops"),
    [(CPU, 4 * CPU_CORE_FLOPS), (H100, GPU_SHARE * (dense_bf16_peak(H100.device_name) or 0))],
)
def test_a_guess_is_the_models_flops_over_the_devices_speed(machine: Machine, flops: float) -> None:
    requested, on_gpu = contract(), machine.device != "cpu"
    needs = estimate(requested, QWEN3_8B, rows=100, mean_tokens=80.0, machine=machine, on_gpu=on_gpu)
    work = workload(QWEN3_8B, requested.adapter, recompute=Recompute.NONE)
    assert needs.tokens
    expected = needs.tokens * work.flops_per_token(requested.exec.seq_len / 2, 1.0) / flops
    assert needs.seconds == needs.time.seconds == pytest.approx(expected)


def report(*, rows: int, tokens: int, longest: int, buckets: list[tuple[int, int]]) -> SupervisionReport:
    histogram = [Bucket(up_to=up_to, rows=count) for up_to, count in buckets]
    return SupervisionReport.model_construct(rows=rows, tokens=tokens, longest_row=longest, token_histogram=histogram)


def step(**changes: int) -> FineTuneContract:
    return contract(exec={"batch_size": 8, "grad_accum": 1, "seq_len": 256} | changes)


def test_the_largest_step_is_between_the_mean_and_the_longest_rows() -> None:
    equal = report(rows=100, tokens=6400, longest=64, buckets=[(64, 100)])
    assert largest_step(step(), equal) == 8 * 64
    mixed = report(rows=100, tokens=8200, longest=250, buckets=[(64, 50), (128, 40), (256, 10)])
    assert 8 * 82 < (largest_step(step(), mixed) or 0) < 8 * 250
    assert (largest_step(step(batch_size=1), mixed) or 0) <= 250
    assert largest_step(step(), report(rows=0, tokens=0, longest=0, buckets=[])) is None


@pytest.mark.parametrize("rows", [8, 40, 400, 4000])
def test_the_largest_step_is_that_of_drawn_rows(rows: int) -> None:
    """Against rows drawn in fact: within a tenth of the largest step's mean over many orders."""
    draw = random.Random(rows)
    lengths = [min(1024, max(16, round(200 * math.exp(draw.gauss(0, 0.7))))) for _ in range(rows)]
    bins = Counter(1 << (length - 1).bit_length() for length in lengths)
    drawn = report(rows=rows, tokens=sum(lengths), longest=max(lengths), buckets=sorted(bins.items()))
    requested = step(epochs=2, seq_len=1024)

    def largest() -> int:
        epochs = [draw.sample(lengths, rows) for _ in range(2)]
        return max(sum(epoch[start : start + 8]) for epoch in epochs for start in range(0, rows, 8))

    expected = sum(largest() for _ in range(50)) / 50
    assert largest_step(requested, drawn) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("held", [{}, {"adapter": {"method": "lora"}, "quant": {"base": "none"}}], ids=["nf4", "none"])
def test_on_a_cpu_a_steps_real_tokens_decide_memory(held: dict[str, dict[str, str]]) -> None:
    requested = contract(exec={"batch_size": 8, "grad_accum": 1, "seq_len": 256}, **held)

    def memory(tokens: int | None, *, on_gpu: bool) -> int:
        return estimate(requested, QWEN3_8B, rows=100, step_tokens=tokens, on_gpu=on_gpu).vram_bytes

    same = Configuration(batch_size=1, grad_accum=1, seq_len=660, recompute=Recompute.NONE)
    cache = cache_bytes(requested, QWEN3_8B, 4)
    assert (cache > 0) == (not held)
    assert memory(660, on_gpu=False) == cache + vram_parts(requested, QWEN3_8B, same, on_gpu=False).total
    # A micro-batch never has more than batch_size rows of seq_len; on a GPU micro-batches are as large as fits.
    assert memory(9999, on_gpu=False) == memory(None, on_gpu=False)
    assert memory(660, on_gpu=True) == memory(None, on_gpu=True)


def test_without_a_gpu_this_machine_is_a_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(None, tmp_path / "gpu", monkeypatch)
    machine = this_machine()
    assert (machine.device, machine.vram_bytes, machine.origin, machine.gpu_fault) == (
        "cpu",
        None,
        "this machine",
        None,
    )
    assert machine.host_bytes
    assert machine.cores
    assert this_machine("cuda").device == "cuda"
    assert this_machine(vram_bytes=1 << 34).vram_bytes == 1 << 34


def test_the_smallest_gpu_of_this_machine_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(MACHINES["two cards"], tmp_path / "gpu", monkeypatch)
    for machine in (this_machine(), this_machine("cuda")):
        assert (machine.device, machine.vram_bytes, machine.device_name) == ("cuda", 23028 << 20, RTX_4090)
    assert this_machine("cpu").device == "cpu"


def test_unusable_gpu_of_this_machine_has_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(MACHINES["old driver"], tmp_path / "gpu", monkeypatch)
    machine = this_machine()
    assert (machine.device, machine.vram_bytes) == ("cpu", None)
    assert machine.gpu_fault
    assert "550.54.14" in machine.gpu_fault
    # Without the trainer's packages this is the machine of a client.
    monkeypatch.setattr(cli.this_machine, "find_spec", lambda _: None)
    assert this_machine().vram_bytes == 24564 << 20
