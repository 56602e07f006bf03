"""The doorbell on a real Valkey: one small message per ring, and a dead broker is no error."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.queue import CONTROL_QUEUE, JOBS_QUEUE, RUN_JOB, SWEEP, Doorbell, make_celery
from tests.postgres import free_port
from tests.valkey import Valkey, running_valkey


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Valkey]:
    with running_valkey(tmp_path) as valkey:
        yield valkey


def ring_for_less_than_3_seconds(doorbell: Doorbell) -> bool:
    started = time.monotonic()
    answer = doorbell.ring("ftjob-1")
    assert time.monotonic() - started < 3
    return answer


def test_ring_puts_one_message_with_the_job_id_and_nothing_else(broker: Valkey) -> None:
    assert Doorbell(make_celery(broker.url)).ring("ftjob-1") is True
    assert broker.client().llen(CONTROL_QUEUE) == 0
    [raw] = broker.client().lrange(JOBS_QUEUE, 0, -1)
    message = json.loads(raw)
    assert message["content-type"] == "application/json"
    assert message["headers"]["task"] == RUN_JOB
    args, kwargs, embedded = json.loads(base64.b64decode(message["body"]))
    assert (args, kwargs) == (["ftjob-1"], {})
    assert not any(embedded.values())
    assert len(raw) < 2000


def test_every_ring_is_a_message_of_its_own(broker: Valkey) -> None:
    doorbell = Doorbell(make_celery(broker.url))
    assert [doorbell.ring("ftjob-1"), doorbell.ring("ftjob-1"), doorbell.ring("ftjob-2")] == [True] * 3
    assert broker.client().llen(JOBS_QUEUE) == 3


def test_sweeps_do_not_wait_behind_jobs(broker: Valkey) -> None:
    make_celery(broker.url).send_task(SWEEP)
    assert (broker.client().llen(CONTROL_QUEUE), broker.client().llen(JOBS_QUEUE)) == (1, 0)


def test_broker_that_was_never_there(caplog: pytest.LogCaptureFixture) -> None:
    # Fails while kombu tries to connect again and again for 6 s.
    doorbell = Doorbell(make_celery(f"redis://127.0.0.1:{free_port()}/0"))
    assert ring_for_less_than_3_seconds(doorbell) is False
    assert "ftjob-1" in caplog.text


def test_broker_that_died_between_two_rings(broker: Valkey) -> None:
    doorbell = Doorbell(make_celery(broker.url))
    assert doorbell.ring("ftjob-0") is True
    broker.kill()
    assert ring_for_less_than_3_seconds(doorbell) is False


def test_message_is_acknowledged_on_receipt_and_results_are_not_kept() -> None:
    conf = make_celery("redis://127.0.0.1:1/0").conf
    assert (conf.task_acks_late, conf.task_ignore_result, conf.accept_content) == (False, True, ["json"])
