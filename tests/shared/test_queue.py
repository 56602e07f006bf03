"""The job queue on a real Valkey: one small message per job, and no error while the broker is down."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery.contrib.testing.worker import start_worker

from cli.standalone.ports import free_port
from shared.queue import CONTROL_QUEUE, JOBS_QUEUE, RUN_JOB, SWEEP, JobQueue, make_celery
from tests.support.valkey import Valkey, running_valkey
from tests.support.waiting import eventually


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Valkey]:
    with running_valkey(tmp_path) as valkey:
        yield valkey


def enqueue_without_waiting(job_queue: JobQueue) -> bool:
    started = time.monotonic()
    accepted = job_queue.enqueue("ftjob-1")
    assert time.monotonic() - started < 15, "it does not wait for the broker"
    return accepted


def test_enqueue_sends_one_message_with_the_job_id_alone(broker: Valkey) -> None:
    assert JobQueue(make_celery(broker.url)).enqueue("ftjob-1") is True
    assert broker.client().llen(CONTROL_QUEUE) == 0
    [raw] = broker.client().lrange(JOBS_QUEUE, 0, -1)
    message = json.loads(raw)
    assert message["content-type"] == "application/json"
    assert message["headers"]["task"] == RUN_JOB
    args, kwargs, embedded = json.loads(base64.b64decode(message["body"]))
    assert (args, kwargs) == (["ftjob-1"], {})
    assert not any(embedded.values())
    assert len(raw) < 2000


def test_every_enqueue_sends_a_message(broker: Valkey) -> None:
    job_queue = JobQueue(make_celery(broker.url))
    assert [job_queue.enqueue("ftjob-1"), job_queue.enqueue("ftjob-1"), job_queue.enqueue("ftjob-2")] == [True] * 3
    assert broker.client().llen(JOBS_QUEUE) == 3


def test_sweeps_do_not_wait_behind_jobs(broker: Valkey) -> None:
    make_celery(broker.url).send_task(SWEEP)
    assert (broker.client().llen(CONTROL_QUEUE), broker.client().llen(JOBS_QUEUE)) == (1, 0)


def test_enqueue_without_a_broker_fails_quickly(caplog: pytest.LogCaptureFixture) -> None:
    # Fails while kombu tries to connect again and again for 6 s.
    job_queue = JobQueue(make_celery(f"redis://127.0.0.1:{free_port()}/0"))
    assert enqueue_without_waiting(job_queue) is False
    assert "ftjob-1" in caplog.text


def test_enqueue_after_the_broker_died_fails_quickly(broker: Valkey) -> None:
    job_queue = JobQueue(make_celery(broker.url))
    assert job_queue.enqueue("ftjob-0") is True
    broker.kill()
    assert enqueue_without_waiting(job_queue) is False


def test_message_is_acknowledged_on_receipt_and_results_are_not_kept() -> None:
    conf = make_celery("redis://127.0.0.1:1/0").conf
    assert (conf.task_acks_late, conf.task_ignore_result, conf.accept_content) == (False, True, ["json"])


NO_MESSAGES = [b"hello", b"\xff\xfe", b"[1]", b"{}", b'{"properties": {"body_encoding": "base64"}, "body": "%"}']


def test_entries_that_are_not_messages_are_dropped_and_the_job_behind_them_is_run(
    broker: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    celery = make_celery(broker.url)
    ran: list[str] = []

    @celery.task(name=RUN_JOB, shared=False)
    def run(job_id: str) -> None:
        ran.append(job_id)

    broker.client().lpush(JOBS_QUEUE, *NO_MESSAGES)
    JobQueue(celery).enqueue("ftjob-1")
    # Celery sets the root logger's level and leaves it so.
    level = caplog.at_level(logging.getLogger().level)
    with level, start_worker(celery, pool="solo", perform_ping_check=False, queues=[JOBS_QUEUE]):
        eventually(lambda: ran, what="the job is run")
    assert ran == ["ftjob-1"]
