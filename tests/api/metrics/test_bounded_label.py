"""Values of a label: those that the operator names, the first few others, and no more, whatever callers send."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from hypothesis import given, settings
from hypothesis import strategies as st

from api.metrics.bounded_label import LONGEST, OTHER, BoundedLabel


def test_first_values_have_their_own_and_later_ones_are_summed() -> None:
    label = BoundedLabel(most=2)
    assert [label.of(name) for name in ("a", "b", "c", "a", "c")] == ["a", "b", OTHER, "a", OTHER]


def test_what_the_operator_names_is_never_crowded_out() -> None:
    label = BoundedLabel(["support"], most=1)
    assert [label.of(name) for name in ("x", "y", "support")] == ["x", OTHER, "support"]


def test_value_of_any_length_makes_no_label() -> None:
    assert BoundedLabel(most=5).of("x" * (LONGEST + 1)) == OTHER


@settings(max_examples=40)
@given(named=st.sets(st.text(max_size=5), max_size=4), most=st.integers(0, 5), sent=st.lists(st.text(max_size=6)))
def test_values_are_bounded_and_stable(named: set[str], most: int, sent: list[str]) -> None:
    label = BoundedLabel(named, most)
    first = [label.of(value) for value in sent]
    assert len(set(first) - named - {OTHER}) <= most
    assert [label.of(value) for value in sent if label.of(value) != OTHER] == [v for v in sent if label.of(v) != OTHER]
    assert all(label.of(value) == value for value in named)


def test_bound_holds_between_threads() -> None:
    label = BoundedLabel(most=10)
    with ThreadPoolExecutor(8) as pool:
        got = set(pool.map(lambda number: label.of(str(number % 400)), range(4000)))
    assert len(got - {OTHER}) == 10
