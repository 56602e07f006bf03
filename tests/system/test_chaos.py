"""kill -9 of each process during a job: it always ends with one successful job and one adapter."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.support.waiting import eventually
from tests.system.loop import SECONDS, Installation

KILL_AT_STEP = 20
"""Past the checkpoints at 5, 10 and 15."""


def kill_program(name: str) -> Callable[[Installation], None]:
    def kill(installation: Installation) -> None:
        pid = installation.stack.pid(name)
        assert pid, f"{name} is not running"
        os.kill(pid, signal.SIGKILL)

    return kill


def kill_engine(installation: Installation) -> None:
    (engine,) = installation.trainers()
    engine.kill()


@pytest.mark.parametrize(
    "programs", [["valkey", "api"], pytest.param(["serving", "valkey", "api"], marks=pytest.mark.long)], ids=len
)
def test_job_survives_the_loss_of_everything_but_its_worker(installation: Installation, programs: list[str]) -> None:
    kill_program("valkey")(installation)  # before the job can be announced: it queues in the database
    # A name of its own: an equal adapter would stay the earlier job's.
    job_id = installation.train(name=f"survivor-{len(programs)}")
    for step, program in zip((10, 20, 30), programs, strict=False):
        assert installation.wait_for_step(job_id, step)["state"] == "running"
        kill_program(program)(installation)
    job = installation.wait_for_success(job_id)
    assert job["attempt"] == 1
    installation.assert_one_result(job)
    assert installation.resumptions(job_id) == 0


@pytest.mark.long  # each loss by itself is in tests/worker/training/test_resume.py and tests/worker/jobs/test_finetune.py
def test_job_continues_from_a_checkpoint_after_each_loss_of_its_trainer_or_worker(installation: Installation) -> None:
    job_id = installation.train(name="resumed", epochs=24)

    def wait_for_attempt(number: int) -> None:
        """Until it has resumed, and so its trainer runs; progress is still that of the attempt before."""
        eventually(lambda: installation.resumptions(job_id) >= number - 1, SECONDS, f"attempt {number} has resumed")
        assert installation.job(job_id)["attempt"] == number

    installation.wait_for_step(job_id, KILL_AT_STEP)
    kill_engine(installation)
    wait_for_attempt(2)
    os.kill(installation.stack.pid("worker"), signal.SIGTERM)
    wait_for_attempt(3)
    (engine,) = installation.trainers()
    kill_program("worker")(installation)
    engine.wait(timeout=60)  # it exits with its worker
    job = installation.wait_for_success(job_id)
    assert job["attempt"] == 4
    installation.assert_one_result(job)
    assert installation.resumptions(job_id) == 3, "each further attempt goes on from a checkpoint"
    assert [event["message"] for event in job["events"]].count("Returned to the queue: the worker stops.") == 1


@pytest.mark.long  # of the killed one above
def test_serving_tier_restarts_and_responds(installation: Installation) -> None:
    stack = installation.stack
    eventually(lambda: stack.pid("serving") and stack._is_ready("serving"), SECONDS, "the replica is back")
    assert installation.ask("mens-tiny")
