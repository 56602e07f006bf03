"""Exact resume: a run that was killed, paused or ran out of memory at any step equals the uninterrupted run, bit for
bit.

The tests run on a CPU in fp32. A kill between two steps leaves the checkpoint of the previous step. So a run of 15
steps with a checkpoint at each step is resumed from each of them; some steps are also tested with a real ``kill -9``.
``make test`` uses one step in the warm-up, one at the end of an epoch, one in the middle and the last; ``make long``
uses all.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import worker.training.checkpoint
import worker.training.step
from shared.artifacts.manifests import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME
from shared.hashing import digest_file
from shared.preflight.activations import Recompute
from tests.support.training_runs import PauseAfter, recomputing
from worker.child_runtime import EXIT_FAILED, StopRequested, run_engine
from worker.run_folder import (
    ADAPTER_FOLDER,
    METRICS_NAME,
    PLAN_NAME,
    SUMMARY_NAME,
    TELEMETRY_NAME,
    list_checkpoints,
    read_json,
)
from worker.training.data.batches import MicroBatch
from worker.training.supervised import SupervisedMethod

STEPS = 15
RUN = {
    "exec": {"epochs": 5, "batch_size": 1, "grad_accum": 2, "warmup_steps": 3, "seq_len": 64},
    "adapter": {"rank": 4, "alpha": 8, "dropout": 0.1},
}
HELD_OUT = [{"prompt": "What is a fix?", "response": "A change."}]
SECONDS = 180


def plan(tiny, folder: Path, checkpoint_every: int = 1):
    sections = RUN | {"exec": RUN["exec"] | {"checkpoint_every": checkpoint_every}}
    return tiny.plan_run(folder, validation=HELD_OUT, **sections)


def result(run_dir: Path) -> dict[str, str]:
    """Digests of all that a run is for."""
    files = [run_dir / ADAPTER_FOLDER / name for name in (WEIGHTS_NAME, CONFIG_NAME, MANIFEST_NAME)]
    return {path.name: digest_file(path) for path in [*files, run_dir / METRICS_NAME]}


def resume_story(run_dir: Path) -> tuple[str, list[int]]:
    told = read_json(run_dir / SUMMARY_NAME)["resume"]
    return told["guarantee"], told["resumed_from_steps"]


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """The uninterrupted run, every checkpoint kept."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker.training.checkpoint, "KEEP", STEPS)
        run_dir = tiny.train(plan(tiny, folder), folder / "run")
    assert len(list_checkpoints(run_dir)) == STEPS - 1
    assert resume_story(run_dir) == ("bit_exact", [])
    return run_dir


QUICK_STEPS = (2, 9, 11, 14)


def long_unless(quick: Collection[int], steps: Iterable[int]) -> list[Any]:
    """Steps as parameters, those marked long that are not among the quick ones."""
    return [pytest.param(step, marks=() if step in quick else pytest.mark.long) for step in steps]


@pytest.mark.parametrize("step", long_unless(QUICK_STEPS, range(1, STEPS)))
def test_killed_after_any_step(tiny, whole, tmp_path, monkeypatch, step):
    torch.rand(step)  # the process that continues has drawn different numbers before
    resumed = tiny.train(plan(tiny, tmp_path), tmp_path / "run", resume=list_checkpoints(whole)[step - 1])
    assert result(resumed) == result(whole)
    assert resume_story(resumed) == ("bit_exact", [step])


def test_a_run_that_continues_with_other_threads_says_why_its_bytes_may_differ(tiny, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    resumed = tiny.train(plan(tiny, tmp_path), tmp_path / "run", resume=list_checkpoints(whole)[-1])
    told = read_json(resumed / SUMMARY_NAME)["resume"]
    assert (told["guarantee"], told["inexact_reasons"]) == ("state_exact", ["threads"])


@pytest.mark.parametrize("level", [Recompute.MLPS, Recompute.BLOCKS])
def test_a_run_continues_where_other_activations_are_recomputed(tiny, tmp_path, level):
    """As on a device with less memory: the same bits. Without dropout, with which MLPs are not recomputed."""
    exec_ = {"epochs": 3, "batch_size": 2, "seq_len": 64, "checkpoint_every": 4}
    run = tiny.plan_run(tmp_path, validation=HELD_OUT, exec=exec_)
    with pytest.raises(StopRequested):
        tiny.train(run, tmp_path / "first", stop=PauseAfter(4))
    checkpoint = list_checkpoints(tmp_path / "first")[-1]
    same = tiny.train(run, tmp_path / "same", resume=checkpoint)
    with recomputing(level):
        other = tiny.train(run, tmp_path / "other", resume=checkpoint)
    budgets = [
        json.loads((run_dir / TELEMETRY_NAME).read_text().splitlines()[0])["payload"] for run_dir in (same, other)
    ]
    assert [told["budget"]["recompute"] for told in budgets] == [Recompute.NONE, level]
    for path in (Path(ADAPTER_FOLDER, WEIGHTS_NAME), Path(METRICS_NAME)):
        assert digest_file(same / path) == digest_file(other / path)
    assert resume_story(other) == ("bit_exact", [4])


@pytest.fixture(scope="module")
def sparse(tiny, tmp_path_factory):
    """The uninterrupted run with checkpoints at its epochs' ends alone."""
    folder = tmp_path_factory.mktemp("sparse")
    return tiny.train(plan(tiny, folder, checkpoint_every=100), folder / "run")


@pytest.mark.parametrize("step", long_unless([7], [1, 7, 14, 15]))
def test_paused_at_a_step_between_checkpoints(tiny, sparse, tmp_path, step):
    run = plan(tiny, tmp_path, checkpoint_every=100)
    with pytest.raises(StopRequested):
        tiny.train(run, tmp_path / "first", stop=PauseAfter(step))
    resumed = tiny.train(run, tmp_path / "second", resume=list_checkpoints(tmp_path / "first")[-1])
    assert result(resumed) == result(sparse)


def test_stopped_again_and_again(tiny, whole, tmp_path):
    run, checkpoint, stops = plan(tiny, tmp_path), None, []
    for attempt in range(4):
        with pytest.raises(StopRequested):
            tiny.train(run, tmp_path / str(attempt), resume=checkpoint, stop=PauseAfter(3))
        checkpoint = list_checkpoints(tmp_path / str(attempt))[-1]
        stops.append(3 * (attempt + 1))
    resumed = tiny.train(run, tmp_path / "last", resume=checkpoint)
    assert result(resumed) == result(whole)
    assert resume_story(resumed) == ("bit_exact", stops)


STAYS = """
import sys, time
from pathlib import Path
import worker.train
from worker.training.supervised import SupervisedMethod
*arguments, told = sys.argv
real = SupervisedMethod().loss
def loss(*given, **more):
    # In the step after it this stays, so that the signal comes before the run's end, however late it is sent.
    if told in Path(arguments[2], TELEMETRY).read_text():
        time.sleep(600)
    return real(*given, **more)
SupervisedMethod.loss = staticmethod(loss)
sys.argv = arguments
sys.exit(worker.train.main())
"""


@pytest.mark.parametrize("step", long_unless([8], [4, 8, 13]))
def test_kill_minus_nine_of_the_process(tiny, whole, tmp_path, step):
    """Kill a separate process during a later step; the run resumes from the last complete checkpoint on disk."""
    run, first = plan(tiny, tmp_path), tmp_path / "first"
    first.mkdir()
    (first / PLAN_NAME).write_text(run.model_dump_json())
    program = STAYS.replace("TELEMETRY", repr(TELEMETRY_NAME))
    command = [sys.executable, "-c", program, str(first / PLAN_NAME), str(first), f'"step": {step + 1},']
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
    try:
        wait_for_step(first, step)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL
    assert not (first / SUMMARY_NAME).exists()
    resumed = tiny.train(run, tmp_path / "second", resume=list_checkpoints(first)[-1])
    assert result(resumed) == result(whole)


@pytest.mark.long
def test_equal_runs_at_the_same_time_give_equal_bytes(tiny, whole, tmp_path):
    """In processes that differ in all that a process may differ in: hash seed, heap, and how often each gets the processor.

    One such process for a few steps: `test_train_process.py::test_the_process_trains_what_the_function_trains`.
    """
    run, processes = plan(tiny, tmp_path), []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / PLAN_NAME).write_text(run.model_dump_json())
        variables = os.environ | {
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": str(number),
            "MALLOC_ARENA_MAX": str(1 + number),
        }
        for name in ("MKL_CBWR", "MKL_DYNAMIC"):
            variables.pop(name)
        command = [
            "nice",
            "-n",
            str(5 * number),
            sys.executable,
            "-m",
            "worker.train",
            str(folder / PLAN_NAME),
            str(folder),
        ]
        processes.append(subprocess.Popen(command, env=variables, stderr=subprocess.DEVNULL))
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert [result(tmp_path / str(number)) for number in range(3)] == [result(whole)] * 3
    assert [resume_story(tmp_path / str(number)) for number in range(3)] == [("bit_exact", [])] * 3


def wait_for_step(run_dir: Path, step: int) -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        path = run_dir / TELEMETRY_NAME
        # The last part may be a line that is still being written.
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        if any(json.loads(line)["payload"].get("step") == step for line in lines if '"event": "step"' in line):
            return
        time.sleep(0.02)
    raise AssertionError(f"step {step} was not reached")


# -- out of memory ----------------------------------------------------------------------------------------------------


class SmallDevice:
    """Stands where the loss is computed; from some call on it has no room for a micro-batch over a share of the first one."""

    def __init__(self, monkeypatch, *, from_call: int, share: float) -> None:
        self.calls, self.from_call, self.share, self.tokens = 0, from_call, share, 0.0
        self.real = SupervisedMethod().loss
        monkeypatch.setattr(SupervisedMethod, "loss", self)

    def __call__(self, model, batch: MicroBatch, device, divisor: float = 1.0):
        self.calls += 1
        self.tokens = self.tokens or self.share * batch.size
        if self.calls >= self.from_call and batch.size > self.tokens:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return self.real(model, batch, device, divisor)


def test_a_step_that_runs_out_of_memory_is_done_again_in_smaller_pieces(tiny, tmp_path, monkeypatch):
    """The same rows, so the same gradient up to rounding; and the smaller pieces stay."""
    run = tiny.plan_run(tmp_path, exec={"epochs": 3, "batch_size": 6, "seq_len": 64})
    plenty = tiny.train(run, tmp_path / "plenty")
    SmallDevice(monkeypatch, from_call=2, share=0.5)
    scarce = tiny.train(run, tmp_path / "scarce")
    assert losses(scarce) == pytest.approx(losses(plenty), rel=1e-4)
    told = read_json(scarce / SUMMARY_NAME)["resume"]
    assert (told["memory_retries"], told["inexact_reasons"]) == (1, ["out_of_memory"])
    # Sums of other pieces: no equal run on a machine with more free memory has these bits.
    assert resume_story(scarce) == ("state_exact", [])


def test_a_run_that_ran_out_of_memory_resumes_as_itself(tiny, tmp_path, monkeypatch):
    exec_ = {"epochs": 6, "batch_size": 6, "seq_len": 32, "checkpoint_every": 1}
    run = tiny.plan_run(tmp_path, exec=exec_, adapter={"dropout": 0.1})
    with monkeypatch.context() as patch:
        SmallDevice(patch, from_call=3, share=0.5)
        whole = tiny.train(run, tmp_path / "whole")
    resumed = tiny.train(run, tmp_path / "second", resume=list_checkpoints(whole)[-1])
    assert result(resumed) == result(whole)
    assert read_json(resumed / SUMMARY_NAME)["resume"]["memory_retries"] == 1


def test_optimizer_without_room_for_its_state_repeats_the_step(tiny, tmp_path, monkeypatch):
    run = tiny.plan_run(tmp_path, exec={"epochs": 2, "batch_size": 6, "seq_len": 64})
    plenty = tiny.train(run, tmp_path / "plenty")
    real, calls = worker.training.step.allocate_state, iter(range(100))

    def allocate(*arguments) -> None:
        if next(calls) == 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        real(*arguments)

    monkeypatch.setattr(worker.training.step, "allocate_state", allocate)
    scarce = tiny.train(run, tmp_path / "scarce")
    assert losses(scarce) == pytest.approx(losses(plenty), rel=1e-4)
    assert read_json(scarce / SUMMARY_NAME)["resume"]["memory_retries"] == 1


def test_validation_that_runs_out_of_memory_is_done_again_in_smaller_pieces(tiny, tmp_path, monkeypatch):
    run = tiny.plan_run(
        tmp_path, exec={"epochs": 2, "batch_size": 3, "seq_len": 64}, data={"validation_split_ratio": 0.5}
    )
    plenty = tiny.train(run, tmp_path / "plenty")
    real, failed = SupervisedMethod().loss, []

    def loss(model, batch: MicroBatch, device, divisor: float = 1.0):
        if not model.training and len(batch.boundaries) > 2:
            failed.append(batch.size)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(model, batch, device, divisor)

    monkeypatch.setattr(SupervisedMethod, "loss", staticmethod(loss))
    scarce = tiny.train(run, tmp_path / "scarce")
    assert failed
    assert losses(scarce) == losses(plenty), "training's own micro-batches stay as they are"
    (expected, *_), (found, *_) = (payloads(folder, "validation") for folder in (plenty, scarce))
    assert found["val_loss"] == pytest.approx(expected["val_loss"], rel=1e-5)
    assert "out_of_memory" in read_json(scarce / SUMMARY_NAME)["resume"]["inexact_reasons"]


def test_when_the_smaller_pieces_do_not_fit_either_the_job_ends_with_advice(tiny, tmp_path, monkeypatch):
    run = tiny.plan_run(tmp_path, exec={"epochs": 3, "batch_size": 6, "seq_len": 64})
    SmallDevice(monkeypatch, from_call=2, share=0.1)
    assert run_engine(lambda: tiny.train(run, tmp_path / "run"), tmp_path) == EXIT_FAILED
    error = read_json(tmp_path / "error.json")
    assert error["code"] == "OUT_OF_MEMORY"
    assert "exec.seq_len" in error["remedy"]


def payloads(run_dir: Path, event: str) -> list[dict]:
    lines = [json.loads(line) for line in (run_dir / TELEMETRY_NAME).read_text().splitlines()]
    return [line["payload"] for line in lines if line["event"] == event]


def losses(run_dir: Path) -> list[float]:
    return [step["loss"] for step in payloads(run_dir, "step")]
