"""The usage meter: requests get usage from vLLM, and the counts eventually reach the database."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime
from typing import Any

import pytest

from api.inference.usage import meter as metering
from api.inference.usage.meter import Meter
from api.inference.usage.taps import CompletionEvents, ResponseEvents, WholeBody
from shared.database.callers.key_records import Key
from shared.database.connection import Database
from shared.database.tenancy import Role
from shared.database.usage import FIGURES, Amount, Period, Usage, UsageAccount

CHAT = "/v1/chat/completions"
RESPONSE = json.dumps({"usage": {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": None}}).encode()
ALWAYS = Period(date(2026, 1, 1), date(9999, 1, 1))


def key(name: str = "key-a", tenant: str = "acme") -> Key:
    return Key(
        id=name,
        name=name,
        tenant=tenant,
        role=Role.VIEWER,
        requests_per_minute=None,
        concurrent_requests=None,
        created_at=datetime.now(UTC),
        revoked_at=None,
    )


class FakeUsage:
    """A usage table in memory, whose database can be away."""

    def __init__(self) -> None:
        self.is_away = False
        self.rows: dict[UsageAccount, Amount] = {}
        self.attempts = 0

    def add(self, amounts: dict[UsageAccount, Amount]) -> None:
        self.attempts += 1
        if self.is_away:
            raise ConnectionError("connection refused")
        for account, amount in amounts.items():
            self.rows[account] = self.rows.get(account, Amount()) + amount


def respond(meter: Meter, model: str = "demo@1", of: Key | None = None) -> None:
    _, tap = meter.of(of or key(), model, CHAT, {})
    assert not tap(RESPONSE)
    assert tap.end() == RESPONSE
    tap.end()
    tap.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())


# -- what is sent to the replica ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("stream", [True, 1, "true", "on"])
def test_streams_request_usage_in_every_event(path: str, stream: object) -> None:
    given = {"model": "m", "stream": stream, "stream_options": {"other": 1}}
    before = json.dumps(given)
    body, tap = Meter(Usage(Database("sqlite:///unused.db"))).of(key(), "m", path, given)
    options = {"other": 1, "include_usage": True, "continuous_usage_stats": True}
    assert body == {"model": "m", "stream": True, "stream_options": options}
    assert isinstance(tap, CompletionEvents)
    assert json.dumps(given) == before


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        (CHAT, {"model": "m"}, WholeBody),
        (CHAT, {"stream": False}, WholeBody),
        (CHAT, {"stream": None}, WholeBody),
        ("/v1/embeddings", {"stream": True}, WholeBody),
        ("/v1/responses", {"stream": False}, WholeBody),
        ("/v1/responses", {"stream": True}, ResponseEvents),
        # requests that vLLM refuses reach it unchanged
        (CHAT, {"stream": "perhaps"}, WholeBody),
        (CHAT, {"stream": True, "stream_options": "all"}, WholeBody),
        (CHAT, {"stream": True, "stream_options": {"include_usage": "perhaps"}}, WholeBody),
        (CHAT, {"stream": True, "n": "many"}, WholeBody),
        (CHAT, {"stream_options": {"include_usage": True}}, WholeBody),
    ],
)
def test_other_requests_are_sent_unchanged(path: str, body: dict[str, Any], kind: type) -> None:
    sent, tap = Meter(Usage(Database("sqlite:///unused.db"))).of(key(), "m", path, body)
    assert sent is body
    assert isinstance(tap, kind)


@pytest.mark.parametrize(
    ("options", "last", "every"),
    [
        (None, False, False),
        ({}, False, False),
        ({"include_usage": None}, False, False),
        ({"include_usage": 1}, True, False),
        ({"include_usage": True, "continuous_usage_stats": "yes"}, True, True),
        ({"continuous_usage_stats": True}, False, False),  # vLLM ignores it without the other
    ],
)
def test_caller_gets_the_usage_that_it_requested(options: dict[str, Any] | None, last: bool, every: bool) -> None:
    usage = b'"usage":{"prompt_tokens":1,"total_tokens":2,"completion_tokens":1}'
    piece = b'data: {"id":"c","choices":[{"index":0}]%b}\n\n'
    end = b'data: {"id":"c","choices":[],' + usage + b"}\n\n"
    _, tap = Meter(Usage(Database("sqlite:///unused.db"))).of(
        key(), "m", CHAT, {"stream": True, "stream_options": options}
    )
    assert tap(piece % (b"," + usage) + end) == piece % (b"," + usage if every else b"") + (end if last else b"")


# -- what is counted --------------------------------------------------------------------------------------------------


def test_counts_by_day_key_and_model_reach_the_database(database: Database) -> None:
    usage = Usage(database)

    first_day = datetime.now(UTC).date()

    async def count() -> None:
        meters = [Meter(usage, interval=0.01), Meter(usage, interval=60)]  # as two processes
        for meter in meters:
            respond(meter)
            respond(meter)
            respond(meter, "tiny")
            respond(meter, of=key("key-b", "shared"))
        await until(lambda: bool(usage.lines("acme", ALWAYS, [])))  # without a flush by the test
        for meter in meters:
            await meter.close()

    run(count)
    found = {
        (line.key_id, line.model): tuple(getattr(line, name) for name in FIGURES)
        for tenant in ("acme", "shared")
        for line in usage.lines(tenant, ALWAYS, ["key", "model"])
    }
    assert found == {
        ("key-a", "demo@1"): (4, 20, 0, 8),
        ("key-a", "tiny"): (2, 10, 0, 4),
        ("key-b", "demo@1"): (2, 10, 0, 4),
    }
    days = {line.day for line in usage.lines("acme", ALWAYS, ["day"])}
    assert days <= {first_day.isoformat(), datetime.now(UTC).date().isoformat()}


def test_tap_that_is_never_closed_counts_nothing() -> None:
    usage = FakeUsage()

    async def refuse() -> None:
        meter = Meter(usage, interval=0.01)
        meter.of(key(), "m", CHAT, {})
        await meter.flush()
        await meter.close()

    run(refuse)
    assert usage.attempts == 0


def test_database_gets_all_counts_after_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    usage = FakeUsage()

    async def outage() -> None:
        meter = Meter(usage, interval=0.01)
        usage.is_away = True
        for _ in range(100):
            respond(meter)
        await until(lambda: usage.attempts >= 3)
        respond(meter)
        usage.is_away = False
        await until(lambda: bool(usage.rows))
        respond(meter)
        await meter.close()

    run(outage)
    [amount] = usage.rows.values()
    assert amount == Amount(102, 510, 0, 204)
    assert caplog.text.count("connection refused") == 1


def test_counts_during_a_write_are_not_lost() -> None:
    usage = FakeUsage()

    async def count() -> None:
        meter = Meter(usage, interval=60)
        respond(meter)
        writing = asyncio.create_task(meter.flush())
        await asyncio.sleep(0)
        usage.is_away = True
        respond(meter)
        await writing
        usage.is_away = False
        await meter.flush()
        await meter.close()

    run(count)
    [amount] = usage.rows.values()
    assert amount.requests == 2


def test_shutdown_without_a_database_logs_the_lost_usage(caplog: pytest.LogCaptureFixture) -> None:
    usage = FakeUsage()
    usage.is_away = True

    async def stop() -> None:
        meter = Meter(usage, interval=60)
        respond(meter, "precious@1")
        await meter.close()

    run(stop)
    assert "precious@1" in caplog.text


def test_shutdown_that_times_out_logs_the_usage_that_may_be_lost(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage, database_answers = FakeUsage(), threading.Event()
    monkeypatch.setattr(metering, "CLOSE_SECONDS", 0.05)
    monkeypatch.setattr(usage, "add", lambda counted: database_answers.wait(10))

    async def stop() -> None:
        meter = Meter(usage, interval=60)
        respond(meter, "precious@1")
        await meter.close()
        database_answers.set()

    run(stop)
    assert "precious@1" in caplog.text
    assert "may be lost" in caplog.text
