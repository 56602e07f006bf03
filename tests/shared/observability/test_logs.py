"""Log lines: one object per line with the current ids, and no secret in either format."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import logging.config
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.database.callers.key_secrets import KEY_PREFIX
from shared.observability.log_context import VARIABLE, add_log_ids, current_ids, log_ids, to_environment
from shared.observability.logs import REDACTED, LogFormat, TextFormatter, json_formatter, redact

KEY = KEY_PREFIX + "x9-_" * 10 + "abc"


@pytest.fixture(params=["text", "json"])
def written(request: pytest.FixtureRequest) -> Iterator[tuple[logging.Logger, io.StringIO, LogFormat]]:
    """A logger of its own, and what it writes."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(json_formatter() if request.param == "json" else TextFormatter())
    logger = logging.getLogger(f"test.logs.{request.param}")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield logger, out, request.param
    logger.removeHandler(handler)


def line(**ids: str) -> dict[str, Any]:
    record = logging.LogRecord("api", logging.INFO, "f.py", 1, "said %s\nmore", ("it",), None)
    with log_ids(**ids):
        return dict(json.loads(json_formatter().format(record)))


def test_line_is_an_object_with_the_ids_of_what_runs() -> None:
    found = line(request_id="req_1", tenant="acme")
    assert found.pop("time").endswith("+00:00")
    expected = {"message": "said it\nmore", "level": "INFO", "logger": "api", "request_id": "req_1", "tenant": "acme"}
    assert found == expected
    assert "request_id" not in line(), "they end with their block"


def test_ids_of_one_task_are_not_anothers() -> None:
    async def work(name: str) -> str:
        with log_ids(request_id=name):
            await asyncio.sleep(0)
            add_log_ids(tenant=f"{name}'s")
            await asyncio.sleep(0)
            inside = await asyncio.to_thread(lambda: dict(current_ids()))
            assert inside == {"request_id": name, "tenant": f"{name}'s"}
            return name

    async def several() -> list[str]:
        return await asyncio.gather(*map(work, "abc"))

    assert asyncio.run(several()) == ["a", "b", "c"]
    assert current_ids() == {}


def test_ids_outside_of_any_block_are_dropped() -> None:
    add_log_ids(tenant="acme")
    assert current_ids() == {}


@pytest.mark.parametrize(
    "text",
    [
        f"the key {KEY} is known",
        f"Authorization: Bearer {KEY}",
        "authorization: bearer eyJhbGciOi.x.y",
        "cannot connect to postgresql+psycopg://mens:hunter2secret@db/mens",
        "redis://:hunter2secret@valkey:6379/0 refused",
        "OPENAI_API_KEY=sk-proj-aaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "HF_TOKEN hf_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ],
)
def test_secrets_are_taken_out_of_messages_and_tracebacks(
    written: tuple[logging.Logger, io.StringIO, LogFormat], text: str
) -> None:
    logger, out, _ = written
    try:
        raise RuntimeError(text)  # noqa: TRY301
    except RuntimeError:
        logger.exception("%s", text)
    got = out.getvalue()
    assert got.count(REDACTED) >= 2
    for secret in (KEY, "hunter2secret", "eyJhbGciOi", "sk-proj-a", "hf_aaa"):
        assert secret not in got


@pytest.mark.parametrize(
    "text", ["http://127.0.0.1:8000/v1/jobs", "mens-up", "adapter mens-tiny@" + "9" * 64, "a@b.c: d"]
)
def test_what_is_not_a_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_redacted_line_is_still_json(written: tuple[logging.Logger, io.StringIO, LogFormat]) -> None:
    logger, out, kind = written
    logger.info('{"Authorization": "Bearer abc"} and "%s"', "redis://:pw@h")
    if kind == "json":
        assert (
            json.loads(out.getvalue())["message"]
            == f'{{"Authorization": "Bearer {REDACTED}"}} and "redis://:{REDACTED}@h"'
        )


def test_child_process_has_the_ids_of_its_attempt() -> None:
    with log_ids(job_id="ftjob-1", attempt="2", tenant="acme"):
        environment = to_environment()
    assert to_environment() == {}
    code = (
        "from worker.child_runtime import log_as_the_worker; import logging; log_as_the_worker();"
        "logging.getLogger('worker.train').warning('here')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "MENS_LOG_FORMAT": "json", "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    got = json.loads(ran.stderr)
    assert (got["job_id"], got["attempt"], got["tenant"], got["message"]) == ("ftjob-1", "2", "acme", "here")
    assert set(environment) == {VARIABLE}


def test_vllms_and_uvicorns_loggers_write_so_too(capfd: pytest.CaptureFixture[str]) -> None:
    config = (Path(__file__).parents[3] / "serving" / "launch" / "json_logging.json").read_text()
    code = (
        f"import json, logging.config; logging.config.dictConfig(json.loads({config!r}));"
        "logging.getLogger('vllm.mens.guard').info('a'); logging.getLogger('uvicorn.error').info('b')"
    )
    environment = {"PYTHONPATH": str(Path(__file__).parents[3])}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert [json.loads(one)["logger"] for one in ran.stderr.splitlines()] == ["vllm.mens.guard", "uvicorn.error"]
