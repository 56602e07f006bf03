"""The Celery application: every scheduled task exists, and never waits behind jobs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shared.queue import CONTROL_QUEUE, CONTROL_TASKS
from worker.app import app, one_at_a_time


def test_every_scheduled_task_exists_and_goes_to_the_control_queue() -> None:
    schedule = app.conf.beat_schedule.values()
    assert {entry["task"] for entry in schedule} == set(CONTROL_TASKS)
    for entry in schedule:
        assert entry["task"] in app.tasks
        assert app.conf.task_routes[entry["task"]] == {"queue": CONTROL_QUEUE}
        # Of the messages that no worker took, one is left.
        assert entry["options"]["expires"] == entry["schedule"]


def test_running_task_is_not_started_twice() -> None:
    """Each task needs one thread only: a message for one that runs already is ignored."""
    began, proceed, calls = threading.Event(), threading.Event(), []

    @one_at_a_time
    def slow() -> None:
        calls.append("slow")
        began.set()
        proceed.wait(10)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(slow)
        assert began.wait(5)
        slow()
        assert calls == ["slow"]
        proceed.set()
        running.result(5)
    slow()
    assert calls == ["slow"] * 2


def test_failed_task_runs_again_the_next_time() -> None:
    calls = []

    @one_at_a_time
    def broken() -> None:
        calls.append("broken")
        raise OSError("no answer")

    for _ in range(2):
        with pytest.raises(OSError, match="no answer"):
            broken()
    assert len(calls) == 2


@pytest.mark.parametrize(
    "file", ["cli/standalone/programs.py", "docker-compose.yml", "deploy/helm/templates/beat.yaml"]
)
def test_control_worker_has_a_thread_for_each_task(file: str) -> None:
    text = (Path(__file__).parents[2] / file).read_text()
    (control,) = [line for line in text.splitlines() if "mens.control" in line]
    words = control.replace(",", " ").replace('"', " ").split()
    assert words[words.index("--concurrency") + 1] == str(len(CONTROL_TASKS))
