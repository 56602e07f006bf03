"""Recent requests of each model, if an admin key of the organisation is given."""

from __future__ import annotations

import io
from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import msgspec

from openai_migration.archive.openai_client import OpenAIClient
from shared.errors import Code, Forbidden

DAYS = 60
"""The period that OpenAI itself uses: an organisation that sent no request in it may no longer train."""
PATH = "organization/usage/completions"


class _Page(msgspec.Struct):
    data: list[dict[str, Any]]
    has_more: bool = False
    next_page: str | None = None


def requests_by_model(client: OpenAIClient, today: date) -> Counter[str]:
    """Return the number of requests of each model in the last 60 days, for the whole organisation.

    Raises:
        Forbidden: the key is not an admin key.
    """
    start = datetime.combine(today - timedelta(days=DAYS), time(), UTC)
    # OpenAI's own clients write lists in a query with brackets.
    query = {"start_time": f"{start.timestamp():.0f}", "bucket_width": "1d", "limit": "31", "group_by[]": "model"}
    counts: Counter[str] = Counter()
    following: str | None = ""
    while following is not None:
        body = io.BytesIO()
        reply = client.send("GET", PATH, body, {**query, "page": following} if following else query)
        if reply.status != 200:
            message = f"OpenAI did not return the requests: {reply.status} {reply.message or reply.code}"
            remedy = f"Set {client.project} to an admin key of the organisation, or leave the option out."
            raise Forbidden(Code.OPENAI_KEY_INVALID, message, remedy=remedy)
        page = msgspec.json.decode(body.getvalue(), type=_Page)
        for line in (line for bucket in page.data for line in bucket.get("results") or []):
            counts[str(line.get("model"))] += int(line.get("num_model_requests") or 0)
        following = page.next_page if page.has_more else None
    return counts
