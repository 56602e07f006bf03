"""Counts the operations of a step: their number, the bytes they move, their FLOPs, and the memory that is live between
them.
"""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from bench.training.allocator import MemoryBlock, SimulatedAllocator

PRODUCTS, ATTENTION, NF4, ELEMENTWISE = "matrix products", "attention", "NF4 to bf16", "elementwise"
DELTA_RULE = "delta rule"
"""Triton's kernels with products of their own (`worker/training/model/kernels/delta_rule/operators.py`)."""
GROUPS = (PRODUCTS, ATTENTION, DELTA_RULE, NF4, ELEMENTWISE)
MULTIPLYING = {"mm", "addmm", "addmm_", "bmm", "baddbmm", "linalg_solve_triangular"}
LOOKUPS = {"embedding", "index_select", "gather"}
"""Operations that read only as much as they write, however large the table is."""
BACKWARD_PRODUCTS = 2.5
"""FLOPs of attention's backward pass as a multiple of its forward pass: five products instead of two."""


@dataclass(frozen=True)
class Card:
    """Assumed rates of a GPU.

    Attributes:
        bandwidth: bytes per second.
        products, products_fp32, attention: FLOP/s.
        launch: minimum seconds of a kernel.
    """

    bandwidth: float
    products: float
    products_fp32: float
    attention: float
    launch: float = 3e-6

    def seconds(self, moved: float, flops: float, rate: float) -> float:
        """Return the time of one kernel."""
        return max(moved / self.bandwidth, flops / rate, self.launch)


@dataclass
class Work:
    """Sums over the operations of a group.

    Attributes:
        operations: number of launched kernels.
        seconds: modelled time, kernel by kernel.
    """

    operations: int = 0
    bytes: float = 0
    flops: float = 0
    seconds: float = 0


class StepCounter(TorchDispatchMode):
    """Counts the operations executed while its context is active, except views.

    Attributes:
        groups: the work by group.
        live, peak: bytes of the tensors created in the context: of those alive now, and the peak.
        segments, expandable: simulated allocators that hold them, with torch's default settings and with a worker's.
    """

    def __init__(self, card: Card) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.card = card
        self.groups: dict[str, Work] = defaultdict(Work)
        self.live = self.peak = 0
        self.segments, self.expandable = SimulatedAllocator(expandable=False), SimulatedAllocator(expandable=True)

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = operation(*args, **(kwargs or {}))
        inputs, outputs = tensors(args, kwargs), tensors(output)
        input_storages = {storage_of(tensor) for tensor in inputs}
        made = {storage_of(tensor): tensor for tensor in outputs if storage_of(tensor) not in input_storages}
        for tensor in made.values():
            self._watch(tensor)
        name = operation.overloadpacket.__name__
        # An operation that neither creates nor changes a tensor has returned a view.
        if (made or operation._schema.is_mutable) and not name.startswith("empty"):  # noqa: SLF001
            self._count(operation, name, args, kwargs or {}, output)
        return output

    def kernel(self, group: str, moved: float, flops: float = 0, rate: float = math.inf) -> None:
        """Count one kernel."""
        work = self.groups[group]
        work.operations += 1
        work.bytes += moved
        work.flops += flops
        work.seconds += self.card.seconds(moved, flops, rate)

    @property
    def total(self) -> Work:
        """The work of all groups."""
        groups = list(self.groups.values())
        return Work(
            sum(work.operations for work in groups),
            sum(work.bytes for work in groups),
            sum(work.flops for work in groups),
            sum(work.seconds for work in groups),
        )

    def _watch(self, made: Tensor) -> None:
        storage = made.untyped_storage()
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        places = (self.segments.take(size), self.expandable.take(size)) if size else ()
        weakref.finalize(storage, self._forget, size, *places).atexit = False

    def _forget(self, size: int, *places: MemoryBlock) -> None:
        self.live -= size
        for allocator, place in zip((self.segments, self.expandable), places, strict=False):
            allocator.give(place, size)

    def _count(self, operation: Any, name: str, args: Any, kwargs: Any, output: Any) -> None:
        if "varlen" in name or "dot_product" in name:
            flops = attention_flops(operation, name, args, kwargs, output)
            self.kernel(ATTENTION, moved(args, output), flops, self.card.attention)
        elif name in MULTIPLYING or (operation.namespace == "mens" and operation.overloadpacket in flop_registry):
            first = tensors(args)[0]
            rate = self.card.products if first.element_size() == 2 else self.card.products_fp32
            group = PRODUCTS if name in MULTIPLYING else DELTA_RULE
            self.kernel(group, moved(args, output), product_flops(operation, name, args, kwargs, output), rate)
        elif operation.namespace == "bitsandbytes":
            self.kernel(NF4, moved(args, output))
        else:
            self.kernel(ELEMENTWISE, 2 * moved(output) if name in LOOKUPS else moved(args, kwargs, output))


def tensors(*trees: Any) -> list[Tensor]:
    """Return all tensors in some arguments."""
    return [leaf for leaf in tree_leaves(trees) if isinstance(leaf, Tensor)]


def storage_of(tensor: Tensor) -> int:
    """Return a number that identifies the tensor's memory."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001


def moved(*trees: Any) -> int:
    """Return the bytes that reading the tensors moves; repeated (expanded) memory is read once."""
    return sum(min(tensor.nbytes, tensor.untyped_storage().nbytes()) for tensor in tensors(trees))


def product_flops(operation: Any, name: str, args: Any, kwargs: Any, output: Any) -> float:
    """Return the FLOPs of a product, or of solving with a triangular matrix."""
    if name == "addmm_":
        return float(2 * args[1].numel() * args[2].shape[1])
    if name == "linalg_solve_triangular":
        return float(args[0].shape[-1] * output.numel())
    return float(flop_registry[operation.overloadpacket](*args, **kwargs, out_val=output))


def attention_flops(operation: Any, name: str, args: Sequence[Any], kwargs: Any, output: Any) -> float:
    """Return the FLOPs of causal attention: on average a position sees half of the others."""
    if formula := flop_registry.get(operation.overloadpacket):
        return float(formula(*args, **kwargs, out_val=output)) / 2
    queries = tensors(args)[0]
    # The kernel for several documents has the longest one as an argument; others take (rows, heads, tokens, size).
    longest = next((argument for argument in args if isinstance(argument, int) and argument > 1), queries.shape[-2])
    return 2.0 * queries.numel() * longest * (BACKWARD_PRODUCTS if "backward" in name else 1)
