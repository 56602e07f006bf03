"""A trainer next to a replica on one GPU: it keeps to its share, and waits for memory that another program holds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from shared.base_models.config import parse_model_config
from shared.errors import Code, JobFailed
from shared.gpus import driver
from tests.support.base_configs import QWEN3_8B
from tests.support.training_runs import contract_for
from worker.training.model import gpu_share, memory_budget
from worker.training.model.gpu_share import keep_to_share
from worker.training.model.memory_budget import choose_budget

GIB = 1 << 30
CUDA = torch.device("cuda", 0)
CONFIG = parse_model_config(QWEN3_8B)
CONTRACT = contract_for("base", exec={"batch_size": 4, "grad_accum": 4, "seq_len": 2048})
PROGRAMS = "GPU-a, 41, 18000, VLLM::EngineCore\nGPU-b, 42, 700, other\nGPU-a, 43, [N/A], python, with a comma\n"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A pretended GPU of 24 GiB: how much of it is free, and which share torch was limited to."""
    state = SimpleNamespace(free=24 * GIB, limited=None)
    properties = SimpleNamespace(total_memory=24 * GIB, uuid="a")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (state.free, 24 * GIB))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, _: setattr(state, "limited", share)
    )
    monkeypatch.setattr(memory_budget, "kernels_agree", lambda _: True)
    monkeypatch.setattr(driver, "_query", lambda _: PROGRAMS)
    monkeypatch.delenv(gpu_share.VARIABLE, raising=False)
    return state


def test_job_that_finds_too_little_free_memory_waits_for_who_holds_it(gpu: SimpleNamespace) -> None:
    """Fails while the trainer loads the base and then runs out of memory, which fails the job."""
    gpu.free = 4 * GIB
    with pytest.raises(JobFailed) as caught:
        choose_budget(CONTRACT, CONFIG, CUDA)
    error = caught.value
    assert (error.code, error.retryable) == (Code.GPU_MEMORY_HELD, True)
    holders = "Held by: VLLM::EngineCore (process 41, 18000 MiB), python, with a comma (process 43)."
    assert error.message.endswith(f"of which 4096 MiB are free. {holders}")


@pytest.mark.parametrize("free", [24, 23])
def test_own_context_is_no_other_program(gpu: SimpleNamespace, free: int) -> None:
    gpu.free = free * GIB
    assert choose_budget(CONTRACT, CONFIG, CUDA).predicted_bytes <= 0.85 * 24 * GIB


def test_job_that_another_process_finds_no_room_for_waits_in_all_of_them(gpu: SimpleNamespace) -> None:
    with pytest.raises(JobFailed):
        choose_budget(
            CONTRACT, CONFIG, CUDA, smallest=lambda number: min(number, 4 * GIB) if number == gpu.free else number
        )


def test_trainer_leaves_a_replica_its_part_even_while_that_is_free(
    gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails while a job that starts before the replica takes memory that the replica then never finds."""
    alone = choose_budget(CONTRACT, CONFIG, CUDA)
    keep_to_share(CUDA)
    assert gpu.limited is None
    monkeypatch.setenv(gpu_share.VARIABLE, "0.5")
    keep_to_share(CUDA)
    beside = choose_budget(CONTRACT, CONFIG, CUDA)
    assert gpu.limited == pytest.approx(0.5 - 1 / 24)
    assert beside.predicted_bytes <= 0.85 * 12 * GIB < alone.predicted_bytes


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_gpu_gives_torch_no_more_than_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    total = torch.cuda.get_device_properties(CUDA).total_memory
    monkeypatch.setenv(gpu_share.VARIABLE, "0.1")
    keep_to_share(CUDA)
    try:
        assert torch.empty(total // 50, dtype=torch.uint8, device=CUDA).is_cuda
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(total // 9, dtype=torch.uint8, device=CUDA)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, CUDA)
