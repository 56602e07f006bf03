"""Real deliveries of webhooks: to receivers on loopback that work, fail, hang or redirect, and by workers that die."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from sqlalchemy import update
from standardwebhooks.webhooks import Webhook

from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.tables.webhooks import WebhookDeliveryRow
from shared.database.webhooks.deliveries import ClaimedDelivery, Deliveries, Outcome
from shared.database.webhooks.endpoints import Delivery, Endpoints
from shared.webhooks.events import EventType
from shared.webhooks.targets import Address, AllowedTargets
from tests.support.builders import submission
from tests.support.databases import ON_SQLITE_IN_MAKE_TEST
from tests.support.waiting import eventually
from tests.support.webhook_receiver import drip, hang, status, webhook_receiver
from worker.webhooks.dispatcher import WebhookDispatcher
from worker.webhooks.sender import WebhookSender

pytestmark = pytest.mark.network

LOOPBACK = AllowedTargets.parse(["127.0.0.0/8"])
LONG_AGO = datetime.fromtimestamp(0).astimezone()


@pytest.fixture
def endpoints(database: Database) -> Endpoints:
    return Endpoints(database, "shared")


@pytest.fixture
def add(endpoints: Endpoints) -> Callable[[str], tuple[str, str]]:
    """Add an endpoint for everything; its id and its secret."""

    def create(url: str) -> tuple[str, str]:
        endpoint, secret = endpoints.create("x", url, list(EventType))
        return endpoint.id, secret

    return create


@pytest.fixture
def end_a_job(database: Database) -> Callable[[], str]:
    jobs = Jobs(database)
    return lambda: jobs.cancel(jobs.submit(submission())[0].id).id


def dispatcher(database: Database, allowed: AllowedTargets = LOOPBACK, **sending: object) -> WebhookDispatcher:
    return WebhookDispatcher(Deliveries(database), WebhookSender(allowed, **sending))


def make_due(database: Database) -> None:
    """Let the time until the next attempts pass, and every lease run out."""
    with database.write() as session:
        pending = update(WebhookDeliveryRow).where(WebhookDeliveryRow.status == "pending")
        session.execute(pending.values(next_attempt_at=LONG_AGO, lease_expires_at=None))


Add = Callable[[str], tuple[str, str]]
EndAJob = Callable[[], str]


def only(endpoints: Endpoints, endpoint_id: str) -> Delivery:
    (delivery,) = endpoints.deliveries(endpoint_id)
    return delivery


def test_what_arrives_is_signed_and_names_what_ended(
    database: Database, endpoints: Endpoints, add: Add, end_a_job: EndAJob
) -> None:
    with webhook_receiver() as receiver:
        endpoint_id, secret = add(receiver.url)
        job_id = end_a_job()
        assert dispatcher(database).run_round() == 1
        (received,) = receiver.received
        event = Webhook(secret).verify(received.body, received.headers)
        assert (event["type"], event["data"]) == ("fine_tuning.job.cancelled", {"id": job_id})
        assert (received.path, received.headers["content-type"]) == ("/hook", "application/json")
        assert dispatcher(database).run_round() == 0
    delivery = only(endpoints, endpoint_id)
    assert (delivery.status, delivery.status_code, delivery.event_id) == ("delivered", 204, event["id"])


def test_a_failure_is_tried_again_under_the_same_id(
    database: Database, endpoints: Endpoints, add: Add, end_a_job: EndAJob
) -> None:
    with webhook_receiver(status(503, b"not\x00 now\n" + b"x" * 100_000), status(200)) as receiver:
        endpoint_id, secret = add(receiver.url)
        end_a_job()
        outcomes: list[Outcome] = []
        failing = dispatcher(database)
        failing.count = outcomes.append
        assert failing.run_round() == 1
        assert [outcome.status_code for outcome in outcomes] == [503]
        delivery = only(endpoints, endpoint_id)
        assert (delivery.status, delivery.status_code, delivery.attempts) == ("pending", 503, 1)
        assert (delivery.last_error or "").startswith("HTTP 503: not now xxx")
        assert delivery.next_attempt_at is not None
        assert timedelta(seconds=4) < delivery.next_attempt_at - delivery.created_at < timedelta(seconds=30)
        make_due(database)
        dispatcher(database).run_round()
        assert receiver.ids[0] == receiver.ids[1]
        for received in receiver.received:
            Webhook(secret).verify(received.body, received.headers)
    assert (only(endpoints, endpoint_id).status, only(endpoints, endpoint_id).last_error) == ("delivered", None)


def test_a_receiver_that_hangs_delays_nobody_else(
    database: Database, endpoints: Endpoints, add: Add, end_a_job: EndAJob
) -> None:
    released = threading.Event()

    class LateSender(WebhookSender):
        """Waits for the one that hangs until the test has seen what became of the other, however long that takes."""

        def send(self, delivery: ClaimedDelivery) -> Outcome:
            if delivery.endpoint_id != hung_id:
                return super().send(delivery)
            outcome = WebhookSender(LOOPBACK, seconds=1.0).send(delivery)
            released.wait(120)
            return outcome

    with webhook_receiver() as hung, webhook_receiver() as well:
        hung.answers[:] = [hang(hung)]
        hung_id, _ = add(hung.url)
        add(well.url)
        for _ in range(5):
            end_a_job()
        delivering = WebhookDispatcher(Deliveries(database), LateSender(LOOPBACK, seconds=60.0))
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(delivering.run_round)
            try:
                eventually(lambda: len(well.received) == 5)
                assert not running.done()  # all five while the other one hangs
                eventually(lambda: len(hung.received) == 1)
            finally:
                delivering.stopping.set()
                released.set()
            running.result(60)
        assert len(hung.received) == 1
    errors = {each.last_error for each in endpoints.deliveries(hung_id) if each.attempts}
    assert errors == {"no response within 1 s"}


def test_a_receiver_that_drips_is_left_at_the_deadline(
    database: Database, endpoints: Endpoints, add: Add, end_a_job: EndAJob
) -> None:
    with webhook_receiver(drip(100.0)) as receiver:
        endpoint_id, _ = add(receiver.url)
        end_a_job()
        began = time.monotonic()
        dispatcher(database, seconds=0.3).run_round()
        assert time.monotonic() - began < 60
    assert only(endpoints, endpoint_id).last_error == "no response within 0.3 s"


def test_a_redirect_is_not_followed(database: Database, endpoints: Endpoints, add: Add, end_a_job: EndAJob) -> None:
    with webhook_receiver() as inner, webhook_receiver() as receiver:
        receiver.answers[:] = [status(307, Location=inner.url)]
        endpoint_id, _ = add(receiver.url)
        end_a_job()
        dispatcher(database).run_round()
        assert inner.received == []
    delivery = only(endpoints, endpoint_id)
    assert (delivery.status, delivery.status_code) == ("pending", 307)
    assert "redirects are not followed" in (delivery.last_error or "")


def test_nothing_is_sent_to_an_address_that_is_not_public(
    database: Database, endpoints: Endpoints, add: Add, end_a_job: EndAJob
) -> None:
    """By whatever name: a port that a name leads to is not even connected to."""
    with webhook_receiver() as receiver:
        port = receiver.url.split(":")[2].split("/")[0]
        by_name, _ = add(f"https://hooks.example:{port}/x")
        by_shorthand, _ = add(f"https://127.1:{port}/x")
        by_address, _ = add(receiver.url)
        end_a_job()
        dispatcher(database, AllowedTargets(), resolve=lambda *_: [ip_address("127.0.0.1")]).run_round()
        assert receiver.received == []
    for endpoint_id in (by_name, by_shorthand):
        error = only(endpoints, endpoint_id).last_error or ""
        assert "does not resolve only to public addresses" in error
        assert "127.0.0.1" not in error
    assert "https://" in (only(endpoints, by_address).last_error or "")


def test_one_private_address_among_public_ones_is_enough(
    database: Database, endpoints: Endpoints, add: Add, end_a_job: EndAJob
) -> None:
    endpoint_id, _ = add("https://hooks.example/x")
    end_a_job()
    mixed: list[Address] = [ip_address("93.184.216.34"), ip_address("::ffff:10.0.0.1")]
    dispatcher(database, AllowedTargets(), resolve=lambda *_: mixed).run_round()
    assert "does not resolve only to public addresses" in (only(endpoints, endpoint_id).last_error or "")


def test_the_address_that_was_checked_is_the_one_that_is_used(
    database: Database, endpoints: Endpoints, add: Add, end_a_job: EndAJob
) -> None:
    """A name that resolves to another address the second time (DNS rebinding) is resolved once."""
    with webhook_receiver() as receiver:
        port = receiver.url.split(":")[2].split("/")[0]
        answers = iter([[ip_address("127.0.0.1")], [ip_address("169.254.169.254")]])
        endpoint_id, _ = add(f"http://hooks.internal:{port}/x")
        end_a_job()
        allowed = AllowedTargets.parse(["hooks.internal"])
        dispatcher(database, allowed, resolve=lambda *_: next(answers)).run_round()
        assert receiver.received[0].headers["host"] == f"hooks.internal:{port}"
    assert only(endpoints, endpoint_id).status == "delivered"
    assert next(answers) == [ip_address("169.254.169.254")]


def test_the_certificate_has_to_be_the_hosts(
    database: Database,
    endpoints: Endpoints,
    add: Add,
    end_a_job: EndAJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection is made to an address, and the name in the URL is what the certificate has to be for."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=x -addext subjectAltName=DNS:hooks.internal -keyout {key} -out {certificate}"
    subprocess.run(made.split(), check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    with webhook_receiver(tls=tls) as receiver:
        port = receiver.url.split(":")[2].split("/")[0]
        its_own, _ = add(f"https://hooks.internal:{port}/hook")
        anothers, _ = add(f"https://other.internal:{port}/hook")
        end_a_job()
        allowed = AllowedTargets.parse(["*.internal"])
        dispatcher(database, allowed, resolve=lambda *_: [ip_address("127.0.0.1")]).run_round()
    assert only(endpoints, its_own).status == "delivered"
    assert "CERTIFICATE_VERIFY_FAILED" in (only(endpoints, anothers).last_error or "")
    assert len(receiver.received) == 1


def test_two_workers_deliver_each_event_once(
    database: Database, endpoints: Endpoints, add: Add, end_a_job: EndAJob
) -> None:
    with webhook_receiver() as receiver:
        ids = [add(receiver.url)[0] for _ in range(3)]
        for _ in range(4):
            end_a_job()
        others = [Database(database.url.render_as_string(hide_password=False)) for _ in range(2)]
        with ThreadPoolExecutor(2) as pool:
            attempts = sum(pool.map(lambda other: dispatcher(other).run_round(), others))
        for other in others:
            other.close()
        assert attempts == len(receiver.received) == 12
        assert sorted(receiver.ids) == sorted(each.event_id for one in ids for each in endpoints.deliveries(one))
    assert {each.status for one in ids for each in endpoints.deliveries(one)} == {"delivered"}


def test_secrets_and_payloads_are_in_no_log(
    database: Database, add: Add, end_a_job: EndAJob, caplog: pytest.LogCaptureFixture
) -> None:
    with webhook_receiver(status(410)) as receiver:
        _, secret = add(receiver.url)
        end_a_job()
        with caplog.at_level("DEBUG"):
            dispatcher(database).run_round()
    assert "is disabled: it answered 410 Gone" in caplog.text
    assert "attempt 1: HTTP 410" in caplog.text
    assert secret not in caplog.text
    assert secret[6:] not in caplog.text
    assert receiver.received[0].headers["webhook-signature"] not in caplog.text


DELIVER = """
import sys
from shared.database.connection import Database
from shared.database.webhooks.deliveries import Deliveries
from shared.webhooks.targets import AllowedTargets
from worker.webhooks.dispatcher import WebhookDispatcher
from worker.webhooks.sender import WebhookSender
WebhookDispatcher(Deliveries(Database(sys.argv[1])), WebhookSender(AllowedTargets.parse(["127.0.0.0/8"]))).run_round()
"""


@ON_SQLITE_IN_MAKE_TEST
def test_a_worker_that_is_killed_in_the_middle_loses_nothing(
    database: Database, endpoints: Endpoints, add: Add, end_a_job: EndAJob
) -> None:
    url = database.url.render_as_string(hide_password=False)
    with webhook_receiver() as receiver:
        receiver.answers[:] = [hang(receiver), status(200)]
        endpoint_id, secret = add(receiver.url)
        job_id = end_a_job()
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
        with subprocess.Popen([sys.executable, "-c", DELIVER, url], env=environment) as killed:
            eventually(lambda: len(receiver.received) == 1)
            killed.send_signal(signal.SIGKILL)
            assert killed.wait(30) == -signal.SIGKILL
        assert (only(endpoints, endpoint_id).status, only(endpoints, endpoint_id).attempts) == ("pending", 1)
        assert dispatcher(database).run_round() == 0  # its lease holds
        make_due(database)
        assert dispatcher(database).run_round() == 1
        assert len(set(receiver.ids)) == 1
        event = Webhook(secret).verify(receiver.received[1].body, receiver.received[1].headers)
        assert event["data"]["id"] == job_id
    assert json.loads(receiver.received[0].body) == event
    assert (only(endpoints, endpoint_id).status, only(endpoints, endpoint_id).attempts) == ("delivered", 2)
