"""Copies of a micro-batch's tensors: one buffer, one copy, the same values."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from worker.training.data import device_copy
from worker.training.data.batches import MicroBatch
from worker.training.data.device_copy import copy_together

CPU = torch.device("cpu")


def batch(*, packed: bool) -> MicroBatch:
    return MicroBatch(
        ids=torch.arange(7)[None],
        positions=torch.arange(7)[None] % 3,
        boundaries=torch.tensor([0, 3, 7], dtype=torch.int32) if packed else None,
        mask=None if packed else torch.ones(1, 7, dtype=torch.int64),
        predictors=torch.tensor([1, 2, 5]),
        targets=torch.tensor([2, 3, 6]),
        weights=torch.tensor([1.0, 0.5, 2.0]),
        weight_sum=3.0,
        tokens=7,
    )


class Copies(TorchDispatchMode):
    """Counts copies to another device."""

    def __init__(self) -> None:
        super().__init__()
        self.blocking: list[bool] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._to_copy.default:
            self.blocking.append(not kwargs.get("non_blocking"))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("packed", [True, False])
def test_values_shapes_and_dtypes_stay(packed: bool) -> None:
    tensors = {
        name: value for name in MicroBatch.__slots__ if torch.is_tensor(value := getattr(batch(packed=packed), name))
    }
    copied = copy_together(tensors, CPU, pinned=False)
    for name, tensor in tensors.items():
        assert (copied[name].dtype, copied[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(copied[name], tensor)


@pytest.mark.parametrize("packed", [True, False])
def test_micro_batch_reaches_a_gpu_by_one_copy_that_nothing_waits_for(
    packed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Meta tensors stand for the GPU's; only a CUDA build pins memory."""
    asked: list[bool] = []

    def together(tensors, device, *, pinned: bool):
        asked.append(pinned)
        return copy_together(tensors, torch.device("meta"), pinned=False)

    monkeypatch.setattr(device_copy, "copy_together", together)
    with Copies() as copies:
        there = batch(packed=packed).on(torch.device("cuda"))
    assert (asked, copies.blocking) == ([True], [False])
    assert (there.ids.device.type, there.weights.shape) == ("meta", (3,))
    assert (there.mask is None) == packed


def test_on_a_cpu_nothing_is_copied() -> None:
    here = batch(packed=True)
    assert here.on(CPU).ids is here.ids


def test_batch_without_targets_is_copied() -> None:
    empty = copy_together({"targets": torch.zeros(0, dtype=torch.int64), "ids": torch.ones(1, 1)}, CPU, pinned=False)
    assert [tensor.shape for tensor in empty.values()] == [(0,), (1, 1)]
