"""Pace, FLOPs and MFU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import worker.training.reporting.throughput
from shared.base_models.config import parse_model_config
from shared.contract.sections import AdapterSection
from shared.preflight.training_time import Workload, dense_bf16_peak, workload
from tests.support.base_configs import QWEN3_8B
from worker.training.reporting.throughput import STEPS_BEFORE_ETA, Machine, Pace

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
    pace = Pace(total_steps=20)
    etas = []
    for done in range(1, 11):
        clock(2)
        assert pace.step() == 2
        etas.append(pace.eta_seconds(done))
    assert etas[: STEPS_BEFORE_ETA - 1] == [None] * (STEPS_BEFORE_ETA - 1)
    assert etas[-1] == pytest.approx(20.0)
    assert pace.steps_per_second == pytest.approx(0.5)


def test_pace_smooths(clock):
    pace, rates = Pace(total_steps=3), []
    for seconds in (1, 1, 10):
        clock(seconds)
        pace.step()
        rates.append(pace.steps_per_second)
    assert rates == pytest.approx([1.0, 1.0, 1 / (1 + 0.2 * 9)])


def test_a_checkpoint_slows_no_step_but_the_end(clock):
    pace = Pace(total_steps=20)
    for _ in range(10):
        clock(1)
        assert pace.step() == 1
        clock(3)
        pace.mark()
    assert pace.steps_per_second == pytest.approx(1)
    assert (pace.step_seconds, pace.wall_seconds) == (10, 40)
    assert pace.eta_seconds(10) == pytest.approx(10 * (1 + 3))


def test_flops_of_qwen3_8b_are_those_of_the_performance_notes():
    """N from the shapes: q, k, v, o and three MLP matrices of 36 layers; the notes' floor is 24.4k tokens/s at S=2048."""
    work = workload(parse_model_config(QWEN3_8B), AdapterSection(rank=16), checkpointing=False)
    block = 4096 * 4096 * 2 + 4096 * 1024 * 2 + 3 * 4096 * 12288
    lora = 16 * 36 * (8192 + 5120 + 5120 + 8192 + 3 * 16384)
    assert (work.linears, work.lora) == (36 * block, lora)
    assert (work.attention, work.head) == (4096 * 36, 4096 * 151936)
    per_token = work.flops_per_token(attended=1024.5, supervised=1.0)
    assert per_token == 4 * 36 * block + 6 * lora + 12 * 4096 * 36 * 1024.5 + 4 * 4096 * 151936
    assert 790e12 / per_token == pytest.approx(24.4e3, rel=0.05)
    recomputed = workload(parse_model_config(QWEN3_8B), AdapterSection(rank=16), checkpointing=True)
    assert 790e12 / recomputed.flops_per_token(1024.5, 1.0) == pytest.approx(16.8e3, rel=0.05)


def test_a_hybrid_attends_in_its_full_layers_only():
    config = parse_model_config(HYBRID)
    assert workload(config, AdapterSection(), checkpointing=False).attention == 4 * 16 * 1


@given(
    st.integers(1, 10**10),
    st.integers(0, 10**8),
    st.integers(1, 10**7),
    st.integers(1, 10**9),
    st.floats(1, 1e5),
    st.floats(0, 1),
)
def test_flops_grow_with_everything(linears, lora, attention, head, attended, supervised):
    plain = Workload(linears=linears, lora=lora, attention=attention, head=head, checkpointing=False)
    again = Workload(linears=linears, lora=lora, attention=attention, head=head, checkpointing=True)
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
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("Tesla T4", None),
        ("AMD Instinct MI300X", None),
        ("", None),
    ],
)
def test_peaks_by_the_devices_own_names(name, peak):
    assert dense_bf16_peak(name) == peak


def test_mfu_of_a_step():
    work = Workload(linears=100, lora=0, attention=0, head=0, checkpointing=False)
    machine = Machine(work=work, peak_flops=1e6)
    assert machine.mfu(tokens=1000, attended_keys=0, targets=0, seconds=1.0) == pytest.approx(0.4)
    assert machine.mfu(tokens=0, attended_keys=0, targets=0, seconds=1.0) is None
    assert Machine(work=work).mfu(tokens=9, attended_keys=0, targets=0, seconds=1.0) is None
    assert Machine(peak_flops=1e6).mfu(tokens=9, attended_keys=0, targets=0, seconds=1.0) is None
