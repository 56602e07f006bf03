"""The simulation of torch's allocator, with the sizes in `CUDACachingAllocator.cpp`."""

from __future__ import annotations

import pytest

from bench.training.allocator import MIB, SimulatedAllocator


@pytest.mark.parametrize(
    ("sizes", "by_default", "expandable"),
    [
        ([1], 2 * MIB, 2 * MIB),
        ([MIB, MIB], 2 * MIB, 2 * MIB),
        ([MIB + 1], 20 * MIB, 20 * MIB),
        ([12 * MIB], 12 * MIB, 20 * MIB),
        ([12 * MIB + 1, 12 * MIB], 26 * MIB, 40 * MIB),
        ([6 * MIB] * 4, 40 * MIB, 40 * MIB),
    ],
)
def test_memory_is_taken_in_segments(sizes: list[int], by_default: int, expandable: int) -> None:
    for allocator, expected in (
        (SimulatedAllocator(expandable=False), by_default),
        (SimulatedAllocator(expandable=True), expandable),
    ):
        for size in sizes:
            allocator.take(size)
        assert allocator.reserved == expected


def test_free_memory_is_used_again_and_joined() -> None:
    allocator = SimulatedAllocator(expandable=False)
    blocks = [allocator.take(5 * MIB) for _ in range(4)]
    for block in (blocks[0], blocks[2], blocks[1], blocks[3]):
        allocator.give(block, 5 * MIB)
    allocator.take(20 * MIB)
    assert allocator.reserved == 20 * MIB


def test_only_an_expandable_segment_grows_under_a_larger_block() -> None:
    taken = {}
    for expandable in (False, True):
        allocator = SimulatedAllocator(expandable=expandable)
        allocator.give(allocator.take(40 * MIB), 40 * MIB)
        allocator.take(60 * MIB)
        taken[expandable] = allocator.reserved
    assert taken == {False: 100 * MIB, True: 60 * MIB}
