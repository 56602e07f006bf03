"""The learning-rate schedule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.training.schedule import learning_rate


def test_warm_up_of_the_specification():
    rates = [learning_rate(step, 100, 0.05, 5) for step in range(6)]
    assert rates == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05, 0.05], abs=1e-12)


@given(st.integers(2, 500), st.floats(1e-6, 1.0), st.data())
def test_first_step_is_never_at_the_full_rate_and_none_is_above_it(total, peak, data):
    warmup = data.draw(st.integers(2, total))
    rates = [learning_rate(step, total, peak, warmup) for step in range(total)]
    assert rates[0] == pytest.approx(peak / warmup)
    assert all(0 < rate <= peak * (1 + 1e-12) for rate in rates)
    assert rates[:warmup] == sorted(rates[:warmup])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)


def test_cosine_is_half_in_the_middle_and_ends_at_zero():
    assert learning_rate(60, 110, 0.1, 10) == pytest.approx(0.05)
    assert learning_rate(110, 110, 0.1, 10) == pytest.approx(0.0, abs=1e-15)
    assert learning_rate(35, 110, 0.1, 10) == pytest.approx(0.1 * (0.5 + 0.5 * 2**-0.5))


@pytest.mark.parametrize("warmup", [0, 1])
def test_a_run_of_one_step_divides_by_nothing(warmup):
    assert learning_rate(0, 1, 0.1, warmup) == pytest.approx(0.1)
