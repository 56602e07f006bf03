"""Signatures of webhooks: Standard Webhooks (https://www.standardwebhooks.com), symmetric, version 1, through its own
library.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

from standardwebhooks.webhooks import Webhook

SECRET_PREFIX = "whsec_"  # noqa: S105  what every secret begins with
SECRET_BYTES = 32
"""Length of a secret; the specification requires 24 to 64 bytes."""


def new_secret() -> str:
    """Return a random signing secret, in the format of receivers' libraries."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def signed_headers(message_id: str, at: datetime, body: str, signing_secrets: Sequence[str]) -> dict[str, str]:
    """Return the three headers of a webhook.

    Args:
        message_id: the same in every attempt, so that a receiver can drop duplicates.
        at: the attempt's time, aware; receivers refuse attempts older than five minutes.
        body: the body in the form in which it is sent.
        signing_secrets: one, or two while the secret is being rotated: a receiver accepts either signature.
    """
    at = at.astimezone(UTC)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(Webhook(secret).sign(message_id, at, body) for secret in signing_secrets),
    }
