"""Which guarantee a resumed run may claim."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import worker.training.model.memory_budget
import worker.training.reproducibility
from shared.artifacts.manifests import WEIGHTS_NAME
from shared.hashing import digest_file
from shared.preflight.activations import choices_of
from shared.preflight.estimate import memory_limit
from tests.support.builders import contract
from tests.support.training_runs import ROWS
from worker.run_folder import ADAPTER_FOLDER, METRICS_NAME, SUMMARY_NAME, TRAINING_MANIFEST_NAME, read_json
from worker.training.model.load import read_config
from worker.training.model.memory_budget import Way, cpu_budget, predict
from worker.training.reproducibility import environment, explain, inexact_reasons

HERE = environment(torch.device("cpu"))


def test_the_same_cpu_and_libraries_give_the_same_bits():
    assert inexact_reasons(HERE, environment(torch.device("cpu"))) == []


@pytest.mark.parametrize("name", sorted(HERE))
def test_whatever_differs_is_named(name):
    assert inexact_reasons(HERE | {name: "other"}, HERE) == [name]
    assert name in explain(name)


def test_a_gpu_promises_the_state_and_not_the_bits():
    on_gpu = HERE | {"kernels": "cuda"}
    assert inexact_reasons(on_gpu, on_gpu) == ["accelerator"]


def test_products_that_depend_on_where_operands_lie_promise_no_bits():
    by_place = HERE | {"products": "by_place"}
    assert inexact_reasons(by_place, by_place) == ["by_place"]


@pytest.mark.parametrize(
    ("variables", "threads", "order"),
    [
        ({"MKL_DYNAMIC": "FALSE"}, 2, "fixed"),
        ({"MKL_DYNAMIC": "0", "OMP_DYNAMIC": "false"}, 2, "fixed"),
        ({"MKL_DYNAMIC": "FALSE", "OMP_DYNAMIC": "TRUE"}, 2, "by_load"),
        ({"MKL_DYNAMIC": "TRUE"}, 2, "by_load"),
        ({}, 2, "by_load"),
        ({"MKL_DYNAMIC": "TRUE"}, 1, "fixed"),
    ],
)
def test_threads_that_follow_the_load_promise_no_bits(monkeypatch, variables, threads, order):
    """An operator's own settings stay; with one thread there is nothing to take away."""
    for name in ("MKL_DYNAMIC", "OMP_DYNAMIC"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(worker.training.reproducibility, "products_depend_on_place", lambda: False)
    here = environment(torch.device("cpu"))
    assert here["products"] == order
    assert inexact_reasons(here, here) == ([] if order == "fixed" else [order])


@pytest.mark.parametrize("adapter", [{"rank": 4}, {"rank": 4, "dropout": 0.1}], ids=["fused", "peft's own"])
def test_free_memory_changes_no_bit(tiny, tmp_path, monkeypatch, adapter):
    """With none left frozen weights are dequantised at every use, with plenty they are kept; the run says which."""
    run = tiny.plan_run(tmp_path, exec={"epochs": 2, "checkpoint_every": 3}, adapter=adapter, validation=ROWS[:2])
    made, cached = [], []
    for free_bytes in (0, 1 << 50):
        monkeypatch.setattr(worker.training.model.memory_budget, "available_memory", lambda free=free_bytes: free)
        run_dir = tiny.train(run, tmp_path / str(free_bytes))
        weights = run_dir / ADAPTER_FOLDER / WEIGHTS_NAME
        made.append([digest_file(weights), digest_file(run_dir / METRICS_NAME)])
        summary, manifest = (read_json(run_dir / name) for name in (SUMMARY_NAME, TRAINING_MANIFEST_NAME))
        cached.append(manifest["engine"]["cache_dequantised"])
        assert summary["resume"]["guarantee"] == "bit_exact"
    assert made[0] == made[1]
    assert cached == [False, True]


@given(
    limit=st.integers(0, 1 << 42), free=st.integers(0, 1 << 42), batch=st.integers(1, 64), length=st.integers(8, 8192)
)
def test_tokens_of_a_cpus_micro_batch_do_not_depend_on_free_memory(tiny_config, limit, free, batch, length):
    made = contract(exec={"batch_size": batch, "seq_len": length})
    some, none = cpu_budget(made, tiny_config, limit, free), cpu_budget(made, tiny_config, limit, 0)
    assert (some.tokens, some.recompute) == (none.tokens, none.recompute)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_activations_that_are_recomputed_change_no_bit(tiny, tiny_config, tmp_path, monkeypatch, dropout):
    """A machine whose memory is too small for all of them makes what a larger one does."""
    run = tiny.plan_run(
        tmp_path, exec={"batch_size": 1, "checkpoint_every": 3}, adapter={"rank": 4, "dropout": dropout}
    )
    asked, made, recomputed = run.plan.contract, [], []
    expected = choices_of(asked, tiny_config)
    for recompute in expected:
        least = Way(asked.exec.seq_len, recompute)
        share = memory_limit(asked, 1 << 30) / (1 << 30)
        total_bytes = 1 + int(predict(asked, tiny_config, least, on_gpu=False) / share)
        monkeypatch.setattr(worker.training.model.memory_budget, "allowed_memory", lambda total=total_bytes: total)
        run_dir = tiny.train(run, tmp_path / str(total_bytes))
        made.append([digest_file(run_dir / ADAPTER_FOLDER / WEIGHTS_NAME), digest_file(run_dir / METRICS_NAME)])
        engine = read_json(run_dir / TRAINING_MANIFEST_NAME)["engine"]
        assert engine["environment"]["tokens"] == str(engine["tokens"]) == str(run.plan.contract.exec.seq_len)
        recomputed.append(engine["recompute"])
    assert len({tuple(one) for one in made}) == 1
    assert recomputed == list(expected)


@pytest.fixture(scope="module")
def tiny_config(tiny_base):
    return read_config(tiny_base)


MEASURE = """
import torch
from worker.training.reproducibility import fix_order_of_sums, products_depend_on_place
fix_order_of_sums()
torch.set_num_threads(1)
print(products_depend_on_place())
"""


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="the variables are MKL's")
def test_the_trainer_has_sums_in_one_order_wherever_operands_lie():
    """A process of its own, because MKL reads its variables once."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MKL_")}
    done = subprocess.run([sys.executable, "-c", MEASURE], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("operand", [0, 1])
def test_a_product_with_other_bits_at_another_place_is_noticed(monkeypatch, operand):
    """The processor decides whether MKL has such places, so here one operand has a different last bit at one of them."""
    real, calls = worker.training.reproducibility._placed, []

    def placed(tensor: torch.Tensor, offset: int) -> torch.Tensor:
        calls.append(offset)
        copy = real(tensor, offset)
        return copy.nextafter(torch.tensor(9.0)) if (offset, len(calls) % 2) == (24, 1 - operand) else copy

    monkeypatch.setattr(worker.training.reproducibility, "_placed", placed)
    assert worker.training.reproducibility.products_depend_on_place()
