"""The Celery application: what beat rings for is there, and never waits behind jobs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shared.queue import CONTROL_QUEUE, CONTROL_TASKS
from worker.app import app, one_at_a_time


def test_every_duty_is_rung_for_and_there_to_answer() -> None:
    schedule = app.conf.beat_schedule.values()
    assert {entry["task"] for entry in schedule} == set(CONTROL_TASKS)
    for entry in schedule:
        assert entry["task"] in app.tasks
        assert app.conf.task_routes[entry["task"]] == {"queue": CONTROL_QUEUE}
        assert entry["options"]["expires"] == entry["schedule"]  # of bells that nobody heard, one is left


def test_a_duty_that_takes_long_keeps_none_of_the_others_waiting() -> None:
    """Each has a thread of its own, and needs no second one: a bell for what is under way is let be."""
    began, go_on, calls = threading.Event(), threading.Event(), []

    @one_at_a_time
    def slow() -> None:
        calls.append("slow")
        began.set()
        go_on.wait(10)

    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(slow)
        assert began.wait(5)
        slow()
        assert calls == ["slow"]
        go_on.set()
        under_way.result(5)
    slow()
    assert calls == ["slow"] * 2


def test_a_duty_that_fails_is_done_the_next_time() -> None:
    calls = []

    @one_at_a_time
    def broken() -> None:
        calls.append("broken")
        raise OSError

    for _ in range(2):
        with pytest.raises(OSError, match=""):
            broken()
    assert len(calls) == 2


@pytest.mark.parametrize("place", ["cli/programs.py", "docker-compose.yml", "deploy/helm/templates/beat.yaml"])
def test_wherever_it_is_started_it_has_a_thread_for_each_duty(place: str) -> None:
    text = (Path(__file__).parents[2] / place).read_text()
    (control,) = [line for line in text.splitlines() if "mens.control" in line]
    words = control.replace(",", " ").replace('"', " ").split()
    assert words[words.index("--concurrency") + 1] == str(len(CONTROL_TASKS))
