"""Routing: shares equal their weights, callers keep their target, and a changed weight moves as few callers as
possible.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shared.database.routing import Routing, Shadow, Target, sticky_point

NAMES = [f"demo@{number}" for number in range(5)]
POINTS = [(number + 0.5) / 1250 for number in range(1250)]
"""An interval's length is the part of these in it, to 1 / 1250: closer than the thousandth that tests allow."""
FINER_POINTS = [(number + 0.5) / 2500 for number in range(2500)]
"""For four intervals together, to two thousandths."""
weights = st.lists(st.integers(1, 1000), min_size=1, max_size=5)


def routing(*sizes: int) -> Routing:
    return Routing(targets=tuple(Target(adapter=NAMES[index], weight=size) for index, size in enumerate(sizes)))


@given(weights)
def test_every_adapter_has_its_share_of_the_points(sizes: list[int]) -> None:
    found = Counter(map(routing(*sizes).choose, POINTS))
    for name, size in zip(NAMES, sizes, strict=False):
        assert found[name] / len(POINTS) == pytest.approx(size / sum(sizes), abs=0.001)


def test_callers_are_spread_by_weight() -> None:
    found = Counter(routing(90, 10).choose(sticky_point("prod", f"user-{number}")) for number in range(10_000))
    assert found[NAMES[1]] / 10_000 == pytest.approx(0.1, abs=0.01)


def test_callers_are_spread_independently_per_alias() -> None:
    split = routing(50, 50)
    same = sum(
        split.choose(sticky_point("prod", f"user-{number}")) == split.choose(sticky_point("beta", f"user-{number}"))
        for number in range(2000)
    )
    assert 900 < same < 1100


@given(weights, st.randoms())
def test_order_of_targets_does_not_matter(sizes: list[int], random: object) -> None:
    written = routing(*sizes)
    mixed = list(written.targets)
    random.shuffle(mixed)
    other = Routing(targets=tuple(mixed))
    assert all(written.choose(point) == other.choose(point) for point in POINTS[::12])


@pytest.mark.exhaustive
@given(st.integers(1, 1000), st.integers(1, 1000), st.data())
def test_weight_moved_between_two_targets_moves_exactly_that_share(
    first: int, second: int, data: st.DataObject
) -> None:
    moved = data.draw(st.integers(0, first - 1))
    before, after = routing(first, second), routing(first - moved, second + moved)
    changed = [(before.choose(point), after.choose(point)) for point in POINTS]
    changed = [pair for pair in changed if pair[0] != pair[1]]
    assert set(changed) <= {(NAMES[0], NAMES[1])}, "no caller moves in the other direction"
    assert len(changed) / len(POINTS) == pytest.approx(moved / (first + second), abs=0.001)


@pytest.mark.exhaustive
@given(st.lists(st.integers(1, 1000), min_size=2, max_size=5), st.data())
def test_weight_moved_among_several_targets_moves_a_bounded_share(sizes: list[int], data: st.DataObject) -> None:
    giver, taker = data.draw(st.permutations(range(len(sizes))))[:2]
    moved = data.draw(st.integers(0, sizes[giver] - 1))
    changed_sizes = list(sizes)
    changed_sizes[giver] -= moved
    changed_sizes[taker] += moved
    before, after = routing(*sizes), routing(*changed_sizes)
    pairs = [(before.choose(point), after.choose(point)) for point in FINER_POINTS]
    changed = [pair for pair in pairs if pair[0] != pair[1]]
    between = {NAMES[index] for index in range(min(giver, taker), max(giver, taker) + 1)}
    assert {name for pair in changed for name in pair} <= between
    bound = abs(giver - taker) * moved / sum(sizes)
    assert len(changed) / len(FINER_POINTS) <= bound + 0.002


def test_restored_weights_restore_every_caller() -> None:
    points = [sticky_point("prod", f"user-{number}") for number in range(500)]
    first = list(map(routing(90, 10).choose, points))
    assert list(map(routing(50, 50).choose, points)) != first
    assert list(map(routing(90, 10).choose, points)) == first


@given(st.text(max_size=20), st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_sticky_point_lies_in_the_unit_interval(alias: str, key: str) -> None:
    assert 0 <= sticky_point(alias.encode("ascii", "replace").decode(), key) < 1


@pytest.mark.parametrize("point", [0.0, 1 - 2**-53])
@given(sizes=st.lists(st.integers(1, 1_000_000), min_size=1, max_size=5))
def test_end_points_belong_to_the_first_and_last_target(point: float, sizes: list[int]) -> None:
    expected = NAMES[0] if point == 0 else NAMES[len(sizes) - 1]
    assert routing(*sizes).choose(point) == expected


def test_sticky_point_is_the_same_in_every_process() -> None:
    code = "from shared.database.routing import sticky_point; print(repr(sticky_point('prod', 'user-ü')))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={})
    assert float(found.stdout) == sticky_point("prod", "user-ü")
    assert sticky_point("prod", "user-1") == 0.916837360056529, "a release may not move callers"


def test_main_has_the_most_weight() -> None:
    assert routing(10, 90).main == NAMES[1]
    assert routing(50, 50).main == NAMES[0]
    assert Routing.to("demo@1").main == "demo@1"


@pytest.mark.parametrize("weight", [0, -1, 1.5, True, "5", 1_000_001, None])
def test_invalid_weights_are_refused(weight: object) -> None:
    with pytest.raises(ValidationError):
        Target.model_validate({"adapter": "demo@1", "weight": weight})


@pytest.mark.parametrize("share", [0, -0.1, 1.01, float("nan")])
def test_invalid_shares_are_refused(share: float) -> None:
    with pytest.raises(ValidationError):
        Shadow(adapter="demo@1", share=share)
