"""Pace, FLOPs and MFU."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import worker.training.reporting.throughput
from shared.base_models.config import parse_model_config
from shared.contract.sections import AdapterSection
from shared.preflight.activations import Recompute
from shared.preflight.training_time import Workload, dense_bf16_peak, workload
from tests.support.base_configs import QWEN3_8B
from worker.training.reporting.throughput import MeasuredDevice, Pace, PlannedWork

HYBRID = {
    "model_type": "qwen3_5_text",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 512,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}


@pytest.fixture
def clock(monkeypatch):
    """Time that the test moves."""
    now = [0.0]
    monkeypatch.setattr(worker.training.reporting.throughput.time, "monotonic", lambda: now[0])

    def tick(seconds):
        now[0] += seconds

    return tick


def test_pace_and_time_left(clock):
    pace = Pace(PlannedWork.of_equal_steps(20))
    etas = []
    for done in range(1, 11):
        clock(2)
        assert pace.step(done) == 2
        etas.append(pace.eta_seconds(done))
    assert etas[:5] == [None, None, None, None, pytest.approx(30.0)]
    assert etas[-1] == pytest.approx(20.0)
    assert pace.steps_per_second == pytest.approx(0.5)


def test_pace_smooths(clock):
    pace, rates = Pace(PlannedWork.of_equal_steps(3)), []
    for number, seconds in enumerate((1, 1, 10), start=1):
        clock(seconds)
        pace.step(number)
        rates.append(pace.steps_per_second)
    assert rates == pytest.approx([1.0, 1.0, 1 / (1 + 0.2 * 9)])


def test_a_checkpoint_slows_no_step_but_the_end(clock):
    pace = Pace(PlannedWork(step_tokens=[1] * 20, pauses=range(1, 21)))
    for number in range(1, 11):
        clock(1)
        assert pace.step(number) == 1
        clock(3)
        pace.mark()
    assert pace.steps_per_second == pytest.approx(1)
    assert (pace.step_seconds, pace.wall_seconds) == (10, 40)
    assert pace.eta_seconds(10) == pytest.approx(10 * (1 + 3))


def lengths(kind: str, seed: int) -> list[int]:
    """Tokens of 400 rows: much alike, a long tail, or two kinds with a factor of 16 between them."""
    draw = random.Random(f"{kind}-{seed}")
    if kind == "two kinds":
        return [draw.choice((64, 1024)) for _ in range(400)]
    sigma = {"alike": 0.1, "long tail": 1.0}[kind]
    return [min(4096, max(16, round(200 * math.exp(draw.gauss(0, sigma))))) for _ in range(400)]


@pytest.mark.parametrize("fixed", [0.0, 0.5, 5.0], ids=["tokens", "both", "steps"])
@pytest.mark.parametrize("rows", [1, 4, 16])
@pytest.mark.parametrize("kind", ["alike", "long tail", "two kinds"])
def test_from_a_quarter_on_the_time_left_is_within_a_quarter(clock, kind, rows, fixed):
    """The mean of the last steps must not stand for all: with a long tail and one row per step it is off by more than half.

    Args:
        fixed: seconds of every step, in addition to one second for 1,000 tokens.
    """
    for seed in range(8):
        drawn, noise = lengths(kind, seed), random.Random(seed)
        epoch = [sum(drawn[start : start + rows]) for start in range(0, len(drawn), rows)]
        steps, epochs = len(epoch), 2
        validation = sum(drawn) // 10
        work = PlannedWork(
            step_tokens=epoch * epochs,
            pauses=[steps * (number + 1) for number in range(epochs)],
            validation_tokens=validation,
        )
        pace, told = Pace(work), []
        elapsed = 0.0

        def spend(seconds):
            nonlocal elapsed
            elapsed += seconds
            clock(seconds)

        for number, tokens in enumerate(work.step_tokens, start=1):
            spend((fixed + tokens / 1000) * noise.uniform(0.8, 1.25) * (4 if number == 1 else 1))
            pace.step(number)
            told.append((elapsed, pace.eta_seconds(number)))
            if number in work.pauses:
                spend(validation / 1000 / 3)
                pace.mark()
        for at, eta in told[:-1]:
            if at >= elapsed / 4:
                assert eta == pytest.approx(elapsed - at, rel=0.25, abs=0.02 * elapsed)


def test_bursts_of_other_work_do_not_decide_the_time_left(clock):
    """On a shared machine ten steps in fifty take three times as long; the next fifty will be like the last."""
    seconds = [3.0 if number % 50 < 10 else 1.0 for number in range(400)]
    pace, elapsed = Pace(PlannedWork.of_equal_steps(len(seconds))), 0.0
    for done, step in enumerate(seconds, start=1):
        clock(step)
        elapsed += step
        pace.step(done)
        if len(seconds) / 4 <= done <= 3 * len(seconds) / 4:
            assert pace.eta_seconds(done) == pytest.approx(sum(seconds) - elapsed, rel=0.25)


@pytest.mark.parametrize("name", ["tickets", "own_rows"])
def test_time_left_of_recorded_runs_of_a_real_model(clock, name):
    """From a quarter of the run on, within a quarter or five seconds of what the run then took, its last checkpoint included."""
    run = json.loads(Path(__file__).with_name("smollm2_runs.json").read_text())[name]
    pauses = dict(zip(run["pauses"], run["pause_ended_ms"], strict=True))
    pace = Pace(PlannedWork(**{key: run[key] for key in ("step_tokens", "pauses", "validation_tokens")}))
    now, end, checked = 0.0, run["pause_ended_ms"][-1] / 1000, 0

    def reach(milliseconds):
        nonlocal now
        clock(milliseconds / 1000 - now)
        now = milliseconds / 1000

    for step, ended in enumerate(run["step_ended_ms"], start=1):
        reach(ended)
        pace.step(step)
        if now >= end / 4:
            assert pace.eta_seconds(step) == pytest.approx(end - now, rel=0.25, abs=5)
            checked += 1
        if step in pauses:
            reach(pauses[step])
            pace.mark()
    assert checked > len(run["step_tokens"]) / 2


def test_the_first_validation_is_expected_to_cost_half_of_training_on_its_tokens(clock):
    pace = Pace(PlannedWork(step_tokens=[100] * 10, pauses=[10], validation_tokens=400))
    for done in range(1, 11):
        clock(2)
        pace.step(done)
    assert pace.eta_seconds(10) == pytest.approx(400 * 2 / 100 / 2)


def test_a_resumed_run_counts_its_own_pauses(clock):
    pace = Pace(PlannedWork(step_tokens=[100] * 30, pauses=[10, 20, 30]))
    for number in range(11, 22):
        clock(1)
        pace.step(number)
        if number == 20:
            clock(5)
            pace.mark()
    assert pace.eta_seconds(21) == pytest.approx(9 + 5)


def test_flops_of_qwen3_8b_are_those_of_the_performance_notes():
    """N from the shapes: q, k, v, o and three MLP matrices of 36 layers; the notes' floor is 24.4k tokens/s at S=2048."""
    work = workload(parse_model_config(QWEN3_8B), AdapterSection(rank=16), recompute=Recompute.NONE)
    block = 4096 * 4096 * 2 + 4096 * 1024 * 2 + 3 * 4096 * 12288
    lora = 16 * 36 * (8192 + 5120 + 5120 + 8192 + 3 * 16384)
    assert (work.linears, work.lora) == (36 * block, lora)
    assert (work.attention, work.head) == (4096 * 36, 4096 * 151936)
    per_token = work.flops_per_token(attended=1024.5, supervised=1.0)
    assert per_token == 4 * 36 * block + 6 * lora + 12 * 4096 * 36 * 1024.5 + 4 * 4096 * 151936
    assert 790e12 / per_token == pytest.approx(24.4e3, rel=0.05)
    recomputed = workload(parse_model_config(QWEN3_8B), AdapterSection(rank=16), recompute=Recompute.BLOCKS)
    assert 790e12 / recomputed.flops_per_token(1024.5, 1.0) == pytest.approx(16.8e3, rel=0.05)


def test_a_hybrid_attends_in_its_full_layers_only():
    config = parse_model_config(HYBRID)
    assert workload(config, AdapterSection(), recompute=Recompute.NONE).attention == 4 * 16 * 1


@given(
    st.integers(1, 10**10),
    st.integers(0, 10**8),
    st.integers(1, 10**7),
    st.integers(1, 10**9),
    st.floats(1, 1e5),
    st.floats(0, 1),
)
def test_flops_grow_with_everything(linears, lora, attention, head, attended, supervised):
    plain = Workload(linears=linears, lora=lora, attention=attention, head=head, recompute=Recompute.NONE)
    again = Workload(linears=linears, lora=lora, attention=attention, head=head, recompute=Recompute.BLOCKS)
    flops = plain.flops_per_token(attended, supervised)
    assert 4 * linears <= flops < again.flops_per_token(attended, supervised) <= 1.5 * flops
    assert flops <= plain.flops_per_token(attended + 1, supervised)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L40", 181e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4080", 97.5e12),
        ("NVIDIA GeForce RTX 4080 SUPER", None),
        ("NVIDIA GeForce RTX 3090 Ti", 80e12),
        ("NVIDIA GeForce RTX 3090", 71e12),
        ("NVIDIA GeForce RTX 5090", 209e12),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 500e12),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", None),
        ("NVIDIA RTX 6000 Ada Generation", 364e12),
        ("Quadro RTX 6000", None),
        ("NVIDIA RTX A6000", 155e12),
        ("NVIDIA A40", 150e12),
        ("NVIDIA B300 SXM6 AC", 2250e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", None),
        ("Tesla T4", None),
        ("AMD Instinct MI300X", None),
        ("", None),
    ],
)
def test_peaks_by_the_devices_own_names(name, peak):
    assert dense_bf16_peak(name) == peak


def test_mfu_of_a_step():
    work = Workload(linears=100, lora=0, attention=0, head=0, recompute=Recompute.NONE)
    machine = MeasuredDevice(work=work, peak_flops=1e6)
    assert machine.mfu(tokens=1000, attended_keys=0, targets=0, seconds=1.0) == pytest.approx(0.4)
    assert machine.mfu(tokens=0, attended_keys=0, targets=0, seconds=1.0) is None
    assert MeasuredDevice(work=work).mfu(tokens=9, attended_keys=0, targets=0, seconds=1.0) is None
    assert MeasuredDevice(peak_flops=1e6).mfu(tokens=9, attended_keys=0, targets=0, seconds=1.0) is None
