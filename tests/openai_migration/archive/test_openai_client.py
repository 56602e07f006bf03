"""Requests to OpenAI: retries, waits, refusals, and a key that appears only in its header."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from openai_migration.archive.openai_client import ATTEMPTS, ProjectKey, Reply, read_key
from shared.errors import Code, Unauthenticated, Unavailable
from tests.support.fake_openai import KEY, Response, ServedOpenAI, error_response, json_response


@pytest.fixture(autouse=True)
def _without_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.http_retry.JITTER", 1.0)


def get(openai: ServedOpenAI, path: str = "models") -> tuple[Reply, bytes]:
    body = io.BytesIO()
    with openai.client() as client:
        return client.send("GET", path, body), body.getvalue()


def test_429_is_tried_again_after_the_time_that_openai_says(openai: ServedOpenAI) -> None:
    openai.fake.limited = {"models": 2}
    assert get(openai)[0] == Reply(200)
    assert openai.waits == [7, 7]
    assert openai.notes == ["OpenAI responded with 429 rate_limit_exceeded; waiting 7 s"] * 2


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({"retry-after-ms": "250"}, 0.25, 0.25),
        ({"Retry-After": "soon"}, 1, 1),
        ({}, 1, 1),
    ],
)
def test_every_form_of_retry_after(openai: ServedOpenAI, headers: dict[str, str], least: float, most: float) -> None:
    openai.fake.before = lambda number, _: error_response(503, None, "Busy.", **headers) if number == 1 else None
    assert get(openai)[0].status == 200
    assert least <= openai.waits[0] <= most


def test_retry_after_may_be_a_date(openai: ServedOpenAI) -> None:
    until = {"Retry-After": format_datetime(datetime.now(UTC) + timedelta(seconds=300))}
    openai.fake.before = lambda number, _: error_response(503, None, "Busy.", **until) if number == 1 else None
    assert get(openai)[0].status == 200
    assert 200 <= openai.waits[0] <= 300


def test_a_wait_of_hours_ends_the_command(openai: ServedOpenAI) -> None:
    openai.fake.before = lambda *_: error_response(429, None, "Tomorrow.", **{"Retry-After": "7200"})
    with pytest.raises(Unavailable, match="7200 s") as raised:
        get(openai)
    assert (raised.value.code, openai.waits) == (Code.OPENAI_UNAVAILABLE, [])


def test_a_quota_that_is_used_up_is_not_waited_for(openai: ServedOpenAI) -> None:
    openai.fake.before = lambda *_: error_response(429, "insufficient_quota", "Pay.")
    assert get(openai)[0] == Reply(429, "insufficient_quota", "Pay.")
    assert not openai.waits


def test_an_object_that_always_fails_is_a_refusal(openai: ServedOpenAI) -> None:
    openai.fake.before = lambda *_: Response(500, b"<html>oops</html>")
    assert get(openai)[0] == Reply(500, "", "<html>oops</html>")
    assert len(openai.waits) == ATTEMPTS - 1


def test_no_response_ends_the_command(openai: ServedOpenAI) -> None:
    openai.url = "http://127.0.0.1:9/v1"
    with pytest.raises(Unavailable, match="no response"):
        get(openai)


def test_the_body_is_the_last_attempts_alone(openai: ServedOpenAI) -> None:
    failure = Response(500, b"x" * 10_000)
    openai.fake.before = lambda number, _: failure if number == 1 else json_response({"data": []})
    assert get(openai) == (Reply(200), b'{"data": []}')


def test_a_refused_key_is_not_quoted(openai: ServedOpenAI) -> None:
    openai.fake.projects.clear()
    with pytest.raises(Unauthenticated) as raised:
        get(openai)
    assert raised.value.message == "OpenAI refused the key in OPENAI_API_KEY: Incorrect API key provided: (key)"


def test_a_key_that_openai_sends_back_is_taken_out(openai: ServedOpenAI) -> None:
    openai.fake.before = lambda *_: error_response(403, None, f"{KEY} may not.")
    assert get(openai)[0].message == "(key) may not."


@pytest.mark.parametrize("secret", ["sk-with a space", "sk-with\nline", "sk-ünicode-key", "short"])
def test_what_cannot_be_a_key_is_refused_without_quoting_it(secret: str) -> None:
    with pytest.raises(Unauthenticated) as raised:
        ProjectKey("OPENAI_API_KEY", secret)
    assert secret not in str(raised.value)


def test_a_key_is_not_in_its_representation() -> None:
    assert KEY not in repr(ProjectKey("OPENAI_API_KEY", KEY))


def test_keys_come_from_the_environment_or_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    assert read_key("OPENAI_API_KEY", None).secret == KEY
    assert read_key("UNSET_KEY", lambda variable: KEY if variable == "UNSET_KEY" else "").secret == KEY
    with pytest.raises(Unauthenticated, match="UNSET_KEY is not set"):
        read_key("UNSET_KEY", None)
