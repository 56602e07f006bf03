"""``mens webhooks`` against a real API, a real dispatcher and a receiver on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from standardwebhooks.webhooks import Webhook

from shared.database.webhooks.deliveries import Deliveries
from shared.webhooks.targets import AllowedTargets
from tests.support.cli_installation import CliInstallation
from tests.support.webhook_receiver import Receiver, status, webhook_receiver
from worker.webhooks.dispatcher import WebhookDispatcher
from worker.webhooks.sender import WebhookSender

pytestmark = pytest.mark.network


@pytest.fixture
def receiver(installation: CliInstallation) -> Iterator[Receiver]:
    """A receiver that the API and a running dispatcher allow."""
    allowed = ["127.0.0.1"]
    installation.patch.setitem(installation.services.settings.__dict__, "webhook_allowed", allowed)
    sender = WebhookSender(AllowedTargets.parse(allowed))
    dispatcher, ended = WebhookDispatcher(Deliveries(installation.services.database), sender), threading.Event()

    def deliver() -> None:
        while not ended.wait(0.05):
            dispatcher.run_round()

    thread = threading.Thread(target=deliver)
    thread.start()
    with webhook_receiver() as receiver:
        yield receiver
        ended.set()
        thread.join()


def test_from_a_new_endpoint_to_its_end(installation: CliInstallation, receiver: Receiver) -> None:
    made = json.loads(installation.mens("webhooks", "create", receiver.url, "--name", "ci", "--json"))
    endpoint, secret = made["id"], made["signing_secret"]
    assert installation.mens("webhooks", "list").splitlines() == [f"{endpoint}\tci\t{receiver.url}\tall\tenabled"]
    assert installation.mens("webhooks", "test", endpoint).startswith("delivered: HTTP 204, event evt_")
    assert Webhook(secret).verify(receiver.received[0].body, receiver.received[0].headers)["object"] == "event"
    rotated = installation.mens("webhooks", "rotate", endpoint)
    assert "The old secret also signs until" in rotated
    receiver.answers[:] = [status(500, b"out of order")]
    assert "not delivered: HTTP 500: out of order" in installation.mens("webhooks", "test", endpoint, code=1)
    for signer in (secret, rotated.split()[3]):
        Webhook(signer).verify(receiver.received[1].body, receiver.received[1].headers)
    failed, delivered = installation.mens("webhooks", "deliveries", endpoint).splitlines()
    assert failed.split("\t")[3:5] == ["failed", "1"]
    assert delivered.split("\t")[3:5] == ["delivered", "1"]
    assert "DISABLED since" in installation.mens("webhooks", "update", endpoint, "--disable")
    assert installation.mens("webhooks", "update", endpoint, "--enable").endswith(": enabled")
    installation.mens("webhooks", "delete", endpoint)
    assert installation.mens("webhooks", "list") == ""


def test_what_cannot_be_sent_to_is_refused_with_a_remedy(installation: CliInstallation) -> None:
    refused = installation.mens("webhooks", "create", "http://10.0.0.1/x", code=1)
    assert "WEBHOOK_URL_FORBIDDEN" in refused
    assert "MENS_WEBHOOK_ALLOWED" in refused
    installation.mens("webhooks", "update", "webhook-1", code=2)
