"""The Celery application: what beat rings for is there, and never waits behind jobs."""

from __future__ import annotations

from shared.queue import CONTROL_QUEUE, CONTROL_TASKS
from worker.app import app


def test_every_duty_is_rung_for_and_there_to_answer() -> None:
    schedule = app.conf.beat_schedule.values()
    assert {entry["task"] for entry in schedule} == set(CONTROL_TASKS)
    for entry in schedule:
        assert entry["task"] in app.tasks
        assert app.conf.task_routes[entry["task"]] == {"queue": CONTROL_QUEUE}
        assert entry["options"]["expires"] == entry["schedule"]  # of bells that nobody heard, one is left
