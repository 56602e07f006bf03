"""The Celery application: every scheduled task exists, and none waits behind jobs."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from celery import Celery
from celery.beat import ScheduleEntry, Scheduler
from celery.contrib.testing.mocks import TaskMessage
from celery.worker.request import Request

from cli.standalone.ports import free_port
from shared.queue import CONTROL_QUEUE, CONTROL_TASKS, SWEEP, every
from tests.support.processes import is_gone, stop_at_exit
from tests.support.valkey import running_valkey
from tests.support.waiting import eventually
from worker.app import app, one_at_a_time, set_up_logging


def test_every_scheduled_task_exists_and_goes_to_the_control_queue() -> None:
    schedule = app.conf.beat_schedule.values()
    assert {entry["task"] for entry in schedule} == set(CONTROL_TASKS)
    for entry in schedule:
        assert entry["task"] in app.tasks
        assert app.conf.task_routes[entry["task"]] == {"queue": CONTROL_QUEUE}
        # Of the messages that no worker took, one is left.
        assert entry["options"]["expires"] == entry["schedule"].seconds


class Recorder(Scheduler):
    """Beat's scheduler, which records the tasks that are due."""

    producer = None

    def __init__(self, entry: dict[str, Any]) -> None:
        super().__init__(Celery("test"), lazy=True)
        self.sent = 0
        self.update_from_dict({"sweep": {"task": SWEEP, **entry}})

    def apply_entry(self, entry: ScheduleEntry, producer: object = None) -> None:
        self.sent += 1

    def sends_again(self, seconds: float) -> bool:
        """Return whether a task is due within this time."""
        before, end = self.sent, time.monotonic() + seconds
        while self.sent == before and time.monotonic() < end:
            self.tick()
        return self.sent > before


@pytest.mark.parametrize("jump", [-3600, 3600], ids=["back", "forward"])
def test_tasks_stay_due_when_the_clock_jumps(monkeypatch: pytest.MonkeyPatch, jump: int) -> None:
    ours, celerys = Recorder(every(0.02)), Recorder({"schedule": 0.02})
    assert ours.sends_again(20)
    assert celerys.sends_again(20)
    monkeypatch.setattr(Celery, "now", lambda _: datetime.now(UTC) + timedelta(seconds=jump))
    assert ours.sends_again(20)
    assert ours.sends_again(20)
    if jump < 0:
        assert not celerys.sends_again(0.2), "the reason for a schedule of our own"


def test_messages_of_the_schedule_are_not_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Sent, received, expired, done: several times a minute in an installation that does nothing."""
    monkeypatch.setattr("worker.app.configure_logging", lambda *_: None)
    caplog.set_level(logging.INFO)
    set_up_logging()
    message = TaskMessage(SWEEP, id="1", expires=(datetime.now(UTC) - timedelta(seconds=1)).isoformat())
    assert Request(message, app=app, task=app.tasks[SWEEP]).revoked()
    assert caplog.messages == []
    for name in ("celery.beat", "celery.worker.strategy", "celery.app.trace"):
        assert not logging.getLogger(name).isEnabledFor(logging.INFO)


def test_running_task_is_not_started_twice() -> None:
    """Each task needs one thread only: a message for one that runs already is ignored."""
    began, proceed, calls = threading.Event(), threading.Event(), []

    @one_at_a_time
    def slow() -> None:
        calls.append("slow")
        began.set()
        proceed.wait(60)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(slow)
        assert began.wait(60)
        slow()
        assert calls == ["slow"]
        proceed.set()
        running.result(60)
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


@pytest.mark.network
@pytest.mark.parametrize("victim", ["beat", pytest.param("worker", marks=pytest.mark.long)])
def test_control_worker_and_its_beat_end_together(tmp_path: Path, victim: str) -> None:
    """Celery does not look after the embedded beat: a supervisor can only start both again when both end."""
    metrics_port = free_port()
    with running_valkey(tmp_path) as valkey:
        command = [sys.executable, "-m", "celery", "-A", "worker.app", "worker", "--without-mingle", "--without-gossip"]
        more = ["--queues", "mens.control", "--beat", "--loglevel", "INFO"]
        log = tmp_path / "log"
        with log.open("wb") as output:
            control = subprocess.Popen(
                [*command, *more],
                env={
                    **os.environ,
                    "MENS_HOME": str(tmp_path / "home"),
                    "MENS_BROKER_URL": valkey.url,
                    "MENS_SWEEP_SECONDS": "1",
                    "MENS_METRICS_PORT": str(metrics_port),
                },
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        stop = stop_at_exit(control)
        try:
            # Each fails, as the home has no database, and that is logged.
            eventually(lambda: log.read_bytes().count(b"Task mens.sweep[") > 2, 120, "they do their work together")
            scraped = httpx.get(f"http://127.0.0.1:{metrics_port}/metrics", trust_env=False, timeout=60).text
            assert "mens_sweep_last_success_timestamp_seconds" in scraped
            (beat,) = [int(pid) for pid in Path(f"/proc/{control.pid}/task/{control.pid}/children").read_text().split()]
            os.kill(beat if victim == "beat" else control.pid, signal.SIGKILL)
            assert control.wait(60) == (1 if victim == "beat" else -signal.SIGKILL)
            eventually(lambda: is_gone(beat), 60, "the beat has ended")
        finally:
            stop()
