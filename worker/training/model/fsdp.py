"""Shards a frozen base for models that one accelerator cannot hold together with its activations (FSDP, arXiv
2304.11277).

Every process keeps a part of each block's frozen weights, in NF4, and a block's complete weights exist only while it
computes. The adapter is not sharded: its parameters, gradients, optimizer and checkpoints are those of one process, and
gradients are added up as without sharding (`worker/training/distributed.py`). Embedding and head are not sharded
either.

Gathering is a collective operation, so all processes run the blocks equally often: a process with fewer micro-batches
takes part with empty ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import TypeVar

import torch
from bitsandbytes.nn import Linear4bit
from peft import PeftModel
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from worker.training.distributed import DistributedContext

VARIABLE = "MENS_SHARD_BASE"
T = TypeVar("T")


def sharding_is_forced(environment: Mapping[str, str]) -> bool:
    """Return whether the operator requires sharding even if the base fits on one device."""
    return environment.get(VARIABLE) == "always"


def shard_base(model: PeftModel, device: torch.device) -> None:
    """Shard every block's frozen weights over the processes; everything else goes to the device whole.

    Call it with a model on the CPU, so that no device ever holds the whole base.
    """
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    adapter = {parameter for parameter in model.parameters() if parameter.requires_grad}
    for block in _blocks(model):
        for layer in block.modules():
            if isinstance(layer, Linear4bit):
                layer.quant_state.to(device)
        # Set explicitly: a block sharded on its own is a root, and a root would stay gathered after its forward pass.
        fully_shard(block, mesh=mesh, reshard_after_forward=True, ignored_params=adapter)
    if device.type != "cpu":
        model.to(device)


def in_step(batches: Iterable[T], distributed: DistributedContext, empty_batch: Callable[[], T]) -> Iterator[T]:
    """Yield a process's micro-batches, padded with empty ones to the number of the process that has most."""
    own = list(batches)
    (most,) = distributed.largest([len(own)])
    for batch, _ in zip_longest(own, range(int(most))):
        yield batch or empty_batch()


def _blocks(model: PeftModel) -> torch.nn.ModuleList:
    """Return the decoder's blocks, `layers` in most families and `h` in GPT-2."""
    decoder = model.get_base_model().get_decoder()
    blocks = getattr(decoder, "layers", None) or decoder.h
    assert isinstance(blocks, torch.nn.ModuleList)
    return blocks
