"""What a resumed run may claim."""

from __future__ import annotations

import pytest
import torch

from worker.training.reproducibility import Guarantee, compare, environment, weaker

HERE = environment(torch.device("cpu"))


def test_the_same_cpu_and_libraries_give_the_same_bits():
    assert compare(HERE, environment(torch.device("cpu"))) == (Guarantee.BIT_EXACT, [])


@pytest.mark.parametrize("name", sorted(HERE))
def test_whatever_differs_is_named(name):
    assert compare(HERE | {name: "other"}, HERE) == (Guarantee.STATE_EXACT, [name])


def test_a_gpu_promises_the_state_and_not_the_bits():
    on_gpu = HERE | {"kernels": "cuda"}
    assert compare(on_gpu, on_gpu) == (Guarantee.STATE_EXACT, [])


def test_two_resumes_promise_what_the_weaker_does():
    exact, state = Guarantee.BIT_EXACT, Guarantee.STATE_EXACT
    assert [weaker(exact, exact), weaker(exact, state), weaker(state, exact)] == [exact, state, state]
