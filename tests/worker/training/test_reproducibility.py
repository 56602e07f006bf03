"""What a resumed run may claim."""

from __future__ import annotations

import os
import subprocess
import sys

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


def test_products_that_depend_on_where_operands_lie_promise_no_bits():
    by_place = HERE | {"products": "by_place"}
    assert compare(by_place, by_place) == (Guarantee.STATE_EXACT, [])


MEASURE = """
import torch
from worker.training.reproducibility import fix_order_of_sums, products_depend_on_place
{told}
torch.set_num_threads(1)
print(products_depend_on_place())
"""


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="the variables are MKL's")
@pytest.mark.parametrize(
    ("told", "depends"), [("fix_order_of_sums()", "False"), ("", "True")], ids=["told", "not told"]
)
def test_the_trainer_has_sums_in_one_order_wherever_operands_lie(told, depends):
    """A process of its own, because MKL reads its variables once. Untold it may depend, which is then reported."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MKL_")}
    command = [sys.executable, "-c", MEASURE.format(told=told)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    if told or torch.backends.cpu.get_cpu_capability() == "AVX512":
        assert done.stdout.strip() == depends
