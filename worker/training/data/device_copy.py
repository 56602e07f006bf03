"""A micro-batch's tensors on their way to the device."""

from __future__ import annotations

from collections.abc import Mapping

import torch

ALIGNMENT = 16
"""Bytes at which each tensor begins; a multiple of every dtype's size."""


def on_device(tensors: Mapping[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    """Return CPU tensors on a device: on a GPU with a single asynchronous copy, elsewhere copied one by one."""
    if device.type == "cuda":
        return copy_together(tensors, device, pinned=True)
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def copy_together(
    tensors: Mapping[str, torch.Tensor], device: torch.device, *, pinned: bool
) -> dict[str, torch.Tensor]:
    """Copy CPU tensors as the bytes of one buffer; the results are views of its copy.

    Args:
        pinned: hold the buffer in pinned memory, which the device reads directly. The allocator keeps it until it was
            read.
    """
    starts, size = {}, 0
    for name, tensor in tensors.items():
        starts[name] = size
        size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    buffer = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    for name, tensor in tensors.items():
        _view(buffer, starts[name], tensor).copy_(tensor)
    copied = buffer.to(device, non_blocking=True)
    return {name: _view(copied, starts[name], tensor) for name, tensor in tensors.items()}


def _view(buffer: torch.Tensor, start: int, tensor: torch.Tensor) -> torch.Tensor:
    """Return the place of a tensor in a buffer of bytes."""
    return buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
