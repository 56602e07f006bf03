"""kill -9, once for each part, in the middle of a job: it always ends with one succeeded job and one adapter."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import psutil
import pytest

from tests.system.loop import Installation

KILL_AT_STEP = 30


def kill_program(name: str) -> Callable[[Installation], None]:
    def kill(installation: Installation) -> None:
        pid = installation.stack.pid(name)
        assert pid, f"{name} is not running"
        os.kill(pid, signal.SIGKILL)

    return kill


def kill_engine(installation: Installation) -> None:
    (engine,) = engines(installation)
    engine.kill()


def engines(installation: Installation) -> list[psutil.Process]:
    worker = psutil.Process(installation.stack.pid("worker"))
    return [child for child in worker.children() if "worker.train" in " ".join(child.cmdline())]


@pytest.mark.parametrize(
    ("kill", "attempts"),
    [
        pytest.param(kill_program("worker"), 2, id="worker"),
        pytest.param(kill_engine, 2, id="engine"),
        pytest.param(kill_program("api"), 1, id="api"),
        pytest.param(kill_program("valkey"), 1, id="valkey"),
        pytest.param(kill_program("serving"), 1, id="serving"),
    ],
)
def test_job_survives_a_kill(
    installation: Installation, kill: Callable[[Installation], None], attempts: int, request: pytest.FixtureRequest
) -> None:
    name = f"survivor-{request.node.callspec.id}"
    job_id = installation.train(name=name)
    installation.wait_for_step(job_id, KILL_AT_STEP)
    kill(installation)
    job = installation.wait_for_success(job_id)
    assert job["attempt"] == attempts
    installation.assert_one_result(job)
    resumed = [event for event in job["events"] if "resumed from the checkpoint" in event["message"]]
    assert len(resumed) == attempts - 1, "a second attempt goes on from a checkpoint"


def test_trainer_exits_with_its_killed_worker(installation: Installation) -> None:
    job_id = installation.train(name="orphan", publish=False)
    installation.wait_for_step(job_id, 5)
    (engine,) = engines(installation)
    kill_program("worker")(installation)
    engine.wait(timeout=5)
    assert installation.call("POST", f"/v1/jobs/{job_id}/cancel")["requested"] == "cancel"
    installation.wait(job_id, lambda job: job["state"] == "cancelled")


def test_jobs_queue_while_the_broker_is_down(installation: Installation) -> None:
    kill_program("valkey")(installation)
    job_id = installation.train(name="unrung", publish=False, epochs=1)
    assert installation.wait_for_success(job_id)["attempt"] == 1


def test_stopped_worker_returns_its_job_with_a_checkpoint(installation: Installation) -> None:
    job_id = installation.train(name="handed-back", publish=False)
    installation.wait_for_step(job_id, KILL_AT_STEP)
    os.kill(installation.stack.pid("worker"), signal.SIGTERM)
    job = installation.wait_for_success(job_id)
    messages = [event["message"] for event in job["events"]]
    assert "Given back to the queue: the worker stops." in messages
    assert any("resumed from the checkpoint" in message for message in messages)


def test_serving_tier_restarts_and_responds(installation: Installation) -> None:
    deadline = time.monotonic() + 90
    while installation.stack.pid("serving") == 0 or not installation.stack._is_ready("serving"):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert installation.ask("mens-tiny")
