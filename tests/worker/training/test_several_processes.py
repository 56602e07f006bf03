"""Several processes give the same numbers as one, look like one process to the worker, and all end together."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from safetensors.torch import load_file

from cli.standalone.ports import free_port
from shared.artifacts.manifests import WEIGHTS_NAME
from shared.errors import Code, JobFailed
from shared.hashing import digest_file
from tests.support.trainings_of_two import (
    DROPOUT,
    IN_PARTS,
    PAUSE_AFTER,
    PAUSED,
    PLAIN,
    RECOMPUTED_IN_PARTS,
    RESUMED,
    SCARCE_MEMORY,
    UNDISTURBED,
    WHOLE_BASE,
)
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


def torchrun(*command: str, **variables: str) -> None:
    """Run a module in two processes, by torchrun itself."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    process = subprocess.Popen([*launcher, "-m", *command], stderr=subprocess.PIPE, text=True, env=environment)
    try:
        _, said = process.communicate(timeout=SECONDS)
    finally:
        process.terminate()
        process.wait(SECONDS)
    assert process.returncode == 0, said


@pytest.fixture(scope="module")
def trainings(tiny, tmp_path_factory) -> Path:
    """The folder of all runs in two processes, which one start of those makes."""
    folder = tmp_path_factory.mktemp("two")
    (folder / PLAIN).write_text(plan(tiny, folder).model_dump_json())
    dropout = plan(tiny, folder, exec=EXEC | {"checkpoint_every": 100}, adapter={"dropout": 0.1})
    (folder / DROPOUT).write_text(dropout.model_dump_json())
    torchrun("tests.support.trainings_of_two", str(folder))
    return folder


@pytest.fixture(params=[WHOLE_BASE, IN_PARTS])
def two(trainings, request) -> Path:
    """The run in two."""
    return trainings / request.param


@pytest.fixture
def in_parts(request) -> bool:
    """Return whether the two processes hold the base in parts."""
    return IN_PARTS in request.node.callspec.id


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


def test_one_process_may_run_out_of_memory(trainings, two):
    """It alone does its share again; then all take smaller pieces, with the same numbers."""
    scarce = trainings / SCARCE_MEMORY
    losses, plenty = ([step["loss"] for step in told(run_dir, "step")] for run_dir in (scarce, two))
    assert losses == pytest.approx(plenty, rel=1e-5)
    state = read_json(list_checkpoints(scarce)[-1] / "trainer_state.json")
    whole = read_json(list_checkpoints(two)[-1] / "trainer_state.json")
    assert (state["memory_retries"], whole["memory_retries"]) == (1, 0)
    assert state["token_budget"] < whole["token_budget"]


def weights_digest(run_dir: Path) -> str:
    return digest_file(run_dir / ADAPTER_FOLDER / WEIGHTS_NAME)


def test_recomputed_mlps_of_a_base_in_parts_change_no_bit(trainings):
    """Fails if what is computed again needs weights that are given back by then."""
    plenty, recomputed = trainings / IN_PARTS, trainings / RECOMPUTED_IN_PARTS
    budget = told(recomputed, "train_start")[0]["budget"]
    assert (budget["recompute"], budget["shard_base"]) == ("mlps", True)
    assert weights_digest(recomputed) == weights_digest(plenty)
    assert [step["loss"] for step in told(recomputed, "step")] == [step["loss"] for step in told(plenty, "step")]


def test_a_pause_of_one_process_is_that_of_all(trainings):
    """Dropout on: the masks of each process are drawn again as they would have been."""
    paused, resumed = trainings / PAUSED, trainings / RESUMED
    assert [step["step"] for step in told(paused, "step")] == list(range(1, PAUSE_AFTER + 1))
    assert list_checkpoints(paused)[-1].name == f"step-{PAUSE_AFTER:08d}"
    assert told(resumed, "train_start")[0]["guarantee"] == "bit_exact"
    assert told(resumed, "step")[0]["step"] == PAUSE_AFTER + 1
    assert weights_digest(resumed) == weights_digest(trainings / UNDISTURBED)


@pytest.mark.long
@pytest.mark.parametrize("name", [WHOLE_BASE, IN_PARTS])
def test_processes_of_its_own_train_the_same(tiny, trainings, tmp_path, name):
    """Each run started as one would start it by hand; the other tests' share two processes with one another."""
    (tmp_path / PLAN_NAME).write_text(plan(tiny, tmp_path).model_dump_json())
    shard = "always" if name == IN_PARTS else "auto"
    torchrun("worker.train", str(tmp_path / PLAN_NAME), str(tmp_path / "run"), MENS_SHARD_BASE=shard)
    assert weights_digest(tmp_path / "run") == weights_digest(trainings / name)


# -- one engine to the worker -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_paused_by_the_worker_and_taken_up_again(tiny, tmp_path, start):
    """The pause of :func:`test_a_pause_of_one_process_is_that_of_all`, by a signal to the launcher (`tests/worker/test_torchrun.py`)."""
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
    assert weights_digest(resumed.run_dir) == weights_digest(tmp_path / "whole")


NO_ROOM = """
import torch, worker.train
from worker.training.supervised import SupervisedMethod
real = SupervisedMethod().loss
def small(model, batch, device, divisor=1.0):
    if model.training and os.environ['RANK'] == '1':
        raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB')
    return real(model, batch, device, divisor)
SupervisedMethod.loss = staticmethod(small)
sys.exit(worker.train.main())
"""


@pytest.mark.long
def test_one_process_that_has_no_room_at_all_ends_the_run_with_its_code(tiny, tmp_path, start, fake_trainer):
    """`tests/worker/test_torchrun.py` tests, with stand-ins for the trainer, that the failed process's code is the
    run's.
    """
    engine = start(plan(tiny, tmp_path), module=fake_trainer(NO_ROOM))
    with pytest.raises(JobFailed) as failed:
        ended(engine)
    assert failed.value.code == Code.OUT_OF_MEMORY
    assert not (engine.run_dir / SUMMARY_NAME).exists()


# -- two machines -----------------------------------------------------------------------------------------------------

LONG_RUN = EXEC | {"epochs": 60, "checkpoint_every": 4}
"""120 steps: a test that was not scheduled for seconds still finds the trainers at work."""
PORT_TAKEN = b"EADDRINUSE"


class Machine:
    """One of two agents of torchrun on this machine, each with a run folder of its own."""

    def __init__(self, rank: int, port: int, run_dir: Path, resume: Path | None) -> None:
        self.run_dir = run_dir
        run_dir.mkdir(exist_ok=True)
        launcher = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes=2",
            "--nproc-per-node=1",
            f"--node-rank={rank}",
        ]
        where = ["--master-addr=127.0.0.1", f"--master-port={port}", "--max-restarts=0"]
        trainer = [
            "-m",
            "worker.train",
            str(run_dir.parent / PLAN_NAME),
            str(run_dir),
            *(["--resume", str(resume)] if resume else []),
        ]
        self.log = (run_dir / LOG_NAME).open("wb")
        self.process = subprocess.Popen(
            [*launcher, *where, *trainer], stdout=self.log, stderr=self.log, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        self.trainer: int | None = None

    def has_begun(self) -> bool:
        """Return whether its trainer runs or has ended; store the running trainer's process id."""
        self.trainer = self.trainer or self._find_trainer()
        return self.trainer is not None or self.process.poll() is not None

    def _find_trainer(self) -> int | None:
        # Any of these processes may end while it is read.
        with suppress(OSError):
            for child in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
                if b"worker.train" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        return None

    def found_port_taken(self) -> bool:
        return self.process.poll() is not None and PORT_TAKEN in (self.run_dir / LOG_NAME).read_bytes()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(SECONDS)
        self.log.close()

    def error(self) -> dict:
        """How it failed."""
        assert self.process.wait(SECONDS) != 0, "it did not fail"
        error = read_json(self.run_dir / "error.json")
        assert error, (self.run_dir / LOG_NAME).read_text()
        return error


def have_begun(pair: list[Machine]) -> bool:
    """Wait until both trainers run or have ended; false if the first machine's port was taken."""
    until(lambda: pair[0].found_port_taken() or all(machine.has_begun() for machine in pair), "both have begun")
    return not pair[0].found_port_taken()


@pytest.fixture
def machines(tmp_path):
    """Starts two machines, with the checkpoint that each resumes from."""
    started: list[Machine] = []

    def begin(name: str, *resume: Path) -> list[Machine]:
        for _ in range(5):
            port = free_port()  # another program may take it before torchrun does
            folders = [tmp_path / f"{name}-{rank}" for rank in (0, 1)]
            pair = [Machine(rank, port, folders[rank], resume[rank] if resume else None) for rank in (0, 1)]
            started.extend(pair)
            if have_begun(pair):
                return pair
            for machine in pair:
                machine.close()
        raise AssertionError("every port was taken")

    yield begin
    for machine in started:
        machine.close()


def test_machine_without_the_checkpoint_is_named(tiny, one, tmp_path, machines):
    (tmp_path / PLAN_NAME).write_text(plan(tiny, tmp_path).model_dump_json())
    there = list_checkpoints(one)[-1]
    for machine in machines("run", there, tmp_path / "elsewhere" / there.name):
        error = machine.error()
        assert (error["code"], error["retryable"]) == (Code.CHECKPOINT_MISSING, True)
        assert error["details"]["processes"] == [f"{socket.gethostname()} (process 1)"]


def kill_one(pair: list[Machine], rank: int, steps: int) -> None:
    """`kill -9` one machine's trainer after some steps; the other says that its peer was lost."""
    until(lambda: len(told(pair[0].run_dir, "step")) >= steps, "enough steps")
    assert pair[rank].process.poll() is None, "the run ended before it could be disturbed"
    os.kill(pair[rank].trainer, signal.SIGKILL)
    error = pair[1 - rank].error()
    assert (error["code"], error["retryable"]) == (Code.PEER_LOST, True)


def test_machines_of_a_taken_port_begin_at_another(tiny, tmp_path, machines, monkeypatch):
    (tmp_path / PLAN_NAME).write_text(plan(tiny, tmp_path, exec=LONG_RUN).model_dump_json())
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = [other.getsockname()[1], free_port()]
        monkeypatch.setattr(f"{__name__}.free_port", lambda: ports.pop(0))
        pair = machines("run")
    assert not ports
    assert all(machine.trainer for machine in pair)


def test_lost_machine_is_reported(tiny, tmp_path, machines):
    (tmp_path / PLAN_NAME).write_text(plan(tiny, tmp_path, exec=LONG_RUN).model_dump_json())
    kill_one(machines("first"), 1, 2)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_run_continues_after_either_machine_was_lost(tiny, tmp_path, machines):
    """At the first step, no checkpoint exists yet; later both continue from the newest checkpoint of the first process."""
    (tmp_path / PLAN_NAME).write_text(plan(tiny, tmp_path, exec=LONG_RUN).model_dump_json())
    whole = machines("whole")
    assert [machine.process.wait(SECONDS) for machine in whole] == [0, 0]
    for rank in (0, 1):
        for steps in (1, 6, 9):
            first = machines(f"first-{rank}-{steps}")
            kill_one(first, rank, steps)
            if checkpoints := list_checkpoints(first[0].run_dir):
                again = machines(f"again-{rank}-{steps}", checkpoints[-1], checkpoints[-1])
                assert [machine.process.wait(SECONDS) for machine in again] == [0, 0]
                assert weights_digest(again[0].run_dir) == weights_digest(whole[0].run_dir)
