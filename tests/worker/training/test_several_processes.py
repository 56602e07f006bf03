"""Several processes: the same numbers as one, one engine to the worker, and all of them end together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from shared.artifacts.manifests import WEIGHTS_NAME
from shared.errors import Code, JobFailed
from shared.hashing import digest_file
from worker.jobs.child_process import ChildProcess, ExitReason
from worker.run_folder import (
    ADAPTER_FOLDER,
    LOG_NAME,
    METRICS_NAME,
    PLAN_NAME,
    SUMMARY_NAME,
    TELEMETRY_NAME,
    list_checkpoints,
    read_json,
)

pytestmark = pytest.mark.timeout(240)

SECONDS = 120
ROWS = [{"prompt": f"What is {n}?", "response": " ".join(["It is a word."] * n)} for n in range(1, 6)]
HELD_OUT = [{"prompt": "What is a fix?", "response": "A change. " * n} for n in (1, 3, 2)]
EXEC = {"epochs": 4, "batch_size": 2, "grad_accum": 2, "seq_len": 64, "checkpoint_every": 3, "learning_rate": 1e-3}
"""Steps of four rows and of one: then one of two processes has nothing to do."""


def plan(tiny, folder: Path, **sections):
    return tiny.plan_run(folder, ROWS, HELD_OUT, **({"exec": EXEC} | sections))


def told(run_dir: Path, event: str) -> list[dict]:
    path = run_dir / TELEMETRY_NAME
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line["payload"] for line in lines if line["event"] == event]


@pytest.fixture
def start(tmp_path):
    """Starts engines of two processes, and ends them however the test ends."""
    engines = []

    def begin(run, name: str = "run", resume: Path | None = None, module: str = "worker.train") -> ChildProcess:
        run_dir = tmp_path / name
        run_dir.mkdir()
        (run_dir / PLAN_NAME).write_text(run.model_dump_json())
        engines.append(ChildProcess(module, run_dir, resume=resume, threads=2, processes=2))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.close()


def until(condition, what: str):
    deadline = time.monotonic() + SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)
    return value


def ended(engine: ChildProcess) -> ExitReason:
    assert engine.wait(SECONDS) is not None, (engine.run_dir / LOG_NAME).read_text()
    return engine.ending()


# -- the same numbers -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one(tiny, tmp_path_factory) -> Path:
    """The run in one process."""
    folder = tmp_path_factory.mktemp("one")
    return tiny.train(plan(tiny, folder), folder / "run")


@pytest.fixture(scope="module", params=["auto", "always"], ids=["whole base", "base in parts"])
def two(tiny, tmp_path_factory, request) -> Path:
    """The run in two, by torchrun itself, as one would start it by hand."""
    folder = tmp_path_factory.mktemp("two")
    (folder / PLAN_NAME).write_text(plan(tiny, folder).model_dump_json())
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, "-m", "worker.train", str(folder / PLAN_NAME), str(folder / "run")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MENS_SHARD_BASE": request.param}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        _, said = process.communicate(timeout=SECONDS)
    finally:
        process.terminate()
        process.wait(SECONDS)
    assert process.returncode == 0, said
    return folder / "run"


@pytest.fixture
def in_parts(request) -> bool:
    """Whether the two processes hold the base in parts."""
    return "parts" in request.node.callspec.id


def test_steps_are_those_of_one_process(one, two, in_parts):
    assert told(two, "train_start")[0]["processes"] == 2
    assert told(two, "train_start")[0]["budget"]["shard_base"] is in_parts
    alone, shared = told(one, "step"), told(two, "step")
    assert [step["step"] for step in shared] == list(range(1, 9))
    for name in ("loss", "grad_norm", "learning_rate", "token_accuracy"):
        assert [step[name] for step in shared] == pytest.approx([step[name] for step in alone], rel=1e-5), name
    assert [step["valid_tokens"] for step in shared] == [step["valid_tokens"] for step in alone]
    assert [step["supervised_ratio_pct"] for step in shared] == [step["supervised_ratio_pct"] for step in alone]


def test_validation_is_that_of_one_process(one, two):
    alone, shared = told(one, "validation"), told(two, "validation")
    assert len(shared) == len(alone) > 4
    for name in ("step", "val_loss", "val_token_accuracy"):
        assert [score[name] for score in shared] == pytest.approx([score[name] for score in alone], rel=1e-5), name


def test_the_adapter_is_that_of_one_process(one, two):
    alone, shared = (load_file(run_dir / ADAPTER_FOLDER / WEIGHTS_NAME) for run_dir in (one, two))
    assert alone.keys() == shared.keys()
    for name, weights in alone.items():
        assert (shared[name] - weights).norm() <= 1e-5 * weights.norm(), name
    assert all(weights.abs().max() > 0 for weights in alone.values())


def test_one_process_writes(one, two):
    assert [path.name for path in list_checkpoints(two)] == [path.name for path in list_checkpoints(one)]
    lines = (two / METRICS_NAME).read_text().splitlines()
    assert len(lines) == len((one / METRICS_NAME).read_text().splitlines())
    assert len(told(two, "train_complete")) == 1
    assert not list(two.glob("*.tmp"))


# -- one engine to the worker -----------------------------------------------------------------------------------------


def test_paused_and_taken_up_again(tiny, tmp_path, start):
    """Dropout on: the masks of each process are drawn again as they would have been."""
    run = plan(tiny, tmp_path, exec=EXEC | {"epochs": 20, "checkpoint_every": 100}, adapter={"dropout": 0.1})
    assert ended(start(run, "whole")) is ExitReason.COMPLETE
    engine = start(run, "first")
    until(lambda: len(told(engine.run_dir, "step")) >= 4, "the fourth step")
    engine.request_stop(checkpoint=True, grace_seconds=60)
    assert ended(engine) is ExitReason.PAUSED
    steps = told(engine.run_dir, "step")[-1]["step"]
    assert steps < 40
    checkpoint = list_checkpoints(engine.run_dir)[-1]
    assert checkpoint.name == f"step-{steps:08d}"
    resumed = start(run, "second", resume=checkpoint)
    assert ended(resumed) is ExitReason.COMPLETE
    assert told(resumed.run_dir, "train_start")[0]["guarantee"] == "bit_exact"
    weights = [tmp_path / name / ADAPTER_FOLDER / WEIGHTS_NAME for name in ("whole", "second")]
    assert digest_file(weights[0]) == digest_file(weights[1])


SMALL_DEVICE = """
import torch, worker.train
from worker.training.supervised import Supervised
real, calls = Supervised().loss, []
def small(model, batch, device, divisor=1.0):
    if model.training and os.environ['RANK'] == '1':
        calls.append(batch.size)
        if len(calls) == 2 or {always}:
            raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB')
    return real(model, batch, device, divisor)
Supervised.loss = staticmethod(small)
sys.exit(worker.train.main())
"""


def test_one_process_may_run_out_of_memory(tiny, tmp_path, two, start, fake_trainer):
    """It alone does its share again; then all take smaller pieces, with the same numbers."""
    engine = start(plan(tiny, tmp_path), module=fake_trainer(SMALL_DEVICE.format(always=False)))
    assert ended(engine) is ExitReason.COMPLETE
    losses, plenty = ([step["loss"] for step in told(run_dir, "step")] for run_dir in (engine.run_dir, two))
    assert losses == pytest.approx(plenty, rel=1e-5)
    state = read_json(list_checkpoints(engine.run_dir)[-1] / "trainer_state.json")
    whole = read_json(list_checkpoints(two)[-1] / "trainer_state.json")
    assert (state["memory_retries"], whole["memory_retries"]) == (1, 0)
    assert state["token_budget"] < whole["token_budget"]


def test_one_process_that_has_no_room_at_all_ends_the_run_with_its_code(tiny, tmp_path, start, fake_trainer):
    engine = start(plan(tiny, tmp_path), module=fake_trainer(SMALL_DEVICE.format(always=True)))
    with pytest.raises(JobFailed) as failed:
        ended(engine)
    assert failed.value.code == Code.OUT_OF_MEMORY
    assert not (engine.run_dir / SUMMARY_NAME).exists()
