"""How processes share a step: distributing rows, summing gradients, agreeing, and detecting that another process has
ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cli.standalone.ports import free_port
from worker.training.distributed import DistributedContext, digest_of, local_rank, share_rows
from worker.training.reporting.telemetry import Score

SECONDS = 120
lengths_of_rows = st.lists(st.integers(1, 5000), max_size=64)
processes = st.integers(1, 9)


def loads(lengths: list[int], shares: list[list[int]]) -> list[int]:
    return [sum(lengths[index] for index in share) for share in shares]


# -- dealing rows out -------------------------------------------------------------------------------------------------


@given(lengths_of_rows, processes)
def test_every_row_goes_to_one_process(lengths, size):
    shares = share_rows(lengths, size)
    assert len(shares) == size
    assert sorted(index for share in shares for index in share) == list(range(len(lengths)))
    assert all(share == sorted(share) for share in shares)


@given(lengths_of_rows, processes)
def test_nobody_has_more_than_a_fair_share_and_one_row(lengths, size):
    most = max(loads(lengths, share_rows(lengths, size)))
    assert most <= sum(lengths) / size + max(lengths, default=0)


@given(lengths_of_rows, processes)
def test_nobody_is_idle_while_another_has_two_rows(lengths, size):
    counts = [len(share) for share in share_rows(lengths, size)]
    assert min(counts) > 0 or max(counts) <= 1


@given(st.integers(1, 4000), st.integers(0, 64), processes)
def test_equal_rows_are_dealt_out_evenly(length, rows, size):
    counts = [len(share) for share in share_rows([length] * rows, size)]
    assert max(counts) - min(counts) <= 1


@given(lengths_of_rows, processes)
def test_each_process_finds_its_own_part_of_the_same_deal(lengths, size):
    assert [DistributedContext(rank, size).share(lengths) for rank in range(size)] == share_rows(lengths, size)


# -- alone ------------------------------------------------------------------------------------------------------------


def test_alone_everything_is_free(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    distributed, state = DistributedContext.join(torch.device("cpu")), torch.get_rng_state()
    score, parameter = Score(1.5, 0.3, 7), torch.nn.Parameter(torch.ones(2))
    distributed.seed_step(1, 2)
    distributed.barrier()
    distributed.sum_gradients([parameter])
    distributed.refuse_difference({"plan": "a"})
    distributed.leave()
    assert (distributed, local_rank()) == (DistributedContext(), 0)
    assert distributed.total(score) is score
    assert (distributed.sum([1, 2.5]), distributed.largest([True, -3])) == ([1, 2.5], [True, -3])
    assert distributed.main_process_first(lambda: "done") == "done"
    assert distributed.share([3, 9, 4]) == [0, 1, 2]
    assert parameter.grad is None
    assert torch.equal(torch.get_rng_state(), state)


def test_the_digest_is_of_the_values():
    tensors = [torch.arange(4.0), torch.ones(2, 2)]
    assert digest_of(tensors) == digest_of([one.clone() for one in tensors])
    assert digest_of(tensors) != digest_of([tensors[0], tensors[1] + 1e-6])


# -- two processes ----------------------------------------------------------------------------------------------------

TOGETHER = """
import json, os, sys, time
from pathlib import Path
import torch
from shared.errors import JobFailed
from worker.child_runtime import PeerLost
from worker.training.reporting.telemetry import Score
from worker.training.distributed import DistributedContext

torch.set_num_threads(1)
distributed, folder, told = DistributedContext.join(torch.device("cpu")), Path(sys.argv[1]), {}
told["sum"], told["largest"] = distributed.sum([1.5, distributed.rank]), distributed.largest([distributed.rank, -distributed.rank, 0])

both, mine, nobodys = (torch.nn.Parameter(torch.zeros(2, 3)) for _ in range(3))
both.grad = torch.full((2, 3), distributed.rank + 1.0)
if not distributed.is_main:
    mine.grad = torch.arange(6.0).view(2, 3)
distributed.sum_gradients([both, mine, nobodys])
told["gradients"] = [None if one.grad is None else one.grad.tolist() for one in (both, mine, nobodys)]

score = Score(0.25, 2 / 3, 3) if distributed.is_main else Score(0.5, 1.0, 1)
told["score"], told["with idle"] = distributed.total(score), distributed.total(score if distributed.is_main else Score(0.0, 0.0, 0))

def encode():
    cached = (folder / "cache").exists()
    time.sleep(0.3)
    (folder / "cache").touch()
    return cached
told["found"] = distributed.main_process_first(encode)

distributed.seed_step(7, 1)
told["mask"] = torch.rand(3).tolist()

distributed.refuse_difference({"plan": "a", "rows": "5"})
try:
    distributed.refuse_difference({"plan": "a", "rows": str(distributed.rank), "weights": str(distributed.rank)})
except JobFailed as error:
    told["refused"] = error.as_dict()
if not distributed.is_main:
    print(json.dumps(told), flush=True)
    os._exit(0)
try:
    distributed.barrier()
except PeerLost:
    told["lost"] = True
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> list[dict]:
    """Return the reports of two processes about one another, by rank."""
    folder = tmp_path_factory.mktemp("together")
    where = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "test",
        "PYTHONPATH": str(Path.cwd()),
    }
    command = [sys.executable, "-c", TOGETHER, str(folder)]
    running = [
        subprocess.Popen(command, env=os.environ | where | {"RANK": rank}, stdout=subprocess.PIPE) for rank in "01"
    ]
    try:
        return [json.loads(process.communicate(timeout=SECONDS)[0]) for process in running]
    finally:
        for process in running:
            process.kill()


def test_numbers_are_added_up_and_compared(told):
    for one in told:
        assert one["sum"] == [3.0, 1.0]
        assert one["largest"] == [1.0, 0.0, 0.0]


def test_gradients_are_added_up_and_none_stays_none(told):
    summed = [[[3.0] * 3] * 2, [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], None]
    assert [one["gradients"] for one in told] == [summed, summed]


def test_scores_of_shares_make_one(told):
    for one in told:
        assert one["score"] == [0.75, 0.75, 4, {}]
        assert one["with idle"] == [0.25, pytest.approx(2 / 3), 3, {}]


def test_the_first_works_and_the_others_find_it_done(told):
    assert [one["found"] for one in told] == [False, True]


def test_each_process_draws_its_own_dropout_masks(told):
    assert told[0]["mask"] != told[1]["mask"]


def test_what_differs_is_named_everywhere(told):
    for one in told:
        assert one["refused"]["code"] == "PROCESSES_DIFFER"
        assert one["refused"]["details"] == {"differs": ["rows", "weights"]}


def test_a_process_that_is_gone_is_noticed(told):
    assert told[0]["lost"] is True
