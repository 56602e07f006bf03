"""Signatures of webhooks, verified with the receivers' code: Standard Webhooks' library and OpenAI's client."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from shared.webhooks.events import EventType, payload
from shared.webhooks.signatures import new_secret, signed_headers


def now() -> datetime:
    """When it is called: a signature is too old after minutes, and a whole run takes longer."""
    return datetime.now(UTC)


def body_of(event: EventType) -> str:
    return payload("evt_1", event, now(), "ftjob-1")


def test_both_secrets_of_a_rotation_verify_and_no_other() -> None:
    new, old = new_secret(), new_secret()
    body = body_of(EventType.JOB_SUCCEEDED)
    headers = signed_headers("evt_1", now(), body, [new, old])
    for secret in (new, old):
        assert Webhook(secret).verify(body, headers)["data"] == {"id": "ftjob-1"}
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret()).verify(body, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(new).verify(body + " ", headers)


def test_an_old_webhook_cannot_be_sent_again() -> None:
    secret, body = new_secret(), body_of(EventType.JOB_FAILED)
    with pytest.raises(WebhookVerificationError, match="too old"):
        Webhook(secret).verify(body, signed_headers("evt_1", now() - timedelta(minutes=6), body, [secret]))


@pytest.mark.network
@pytest.mark.parametrize("event", EventType)
def test_openais_client_unwraps_every_event(event: EventType) -> None:
    from openai import InvalidWebhookSignatureError, OpenAI

    secret, body = new_secret(), body_of(event)
    headers = signed_headers("evt_1", now(), body, [new_secret(), secret])
    with OpenAI(api_key="none", webhook_secret=secret) as client:
        found = client.webhooks.unwrap(body, headers)
        assert (found.id, found.type, found.data.id) == ("evt_1", str(event), "ftjob-1")
        assert type(found).__name__.endswith("WebhookEvent")
        with pytest.raises(InvalidWebhookSignatureError):
            client.webhooks.unwrap(body, headers, secret=new_secret())
