"""Aliases with the real vLLM: a split, a shadow, and a rollback."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.support.waiting import eventually
from tests.system.loop import ANSWER, QUESTION, Installation

MESSAGES: Any = [{"role": "user", "content": QUESTION}]


@pytest.fixture(scope="module")
def versions(tuned: dict[str, Any]) -> tuple[str, str]:
    """The job's result, and a checkpoint of it."""
    return tuned["result"]["adapter_id"], tuned["result"]["adapters"][0]


def served_requests(installation: Installation) -> float:
    settings = installation.stack.settings
    headers = {"Authorization": f"Bearer {settings['MENS_METRICS_KEY']}"}
    url = f"{settings['MENS_SERVING_URLS']}/metrics"
    text = httpx.get(url, headers=headers, timeout=60, trust_env=False).text
    return sum(map(float, re.findall(r"^vllm:request_success_total\{.*\} ([\d.]+)", text, re.MULTILINE)))


def test_split_is_sticky_by_user(client: OpenAI, installation: Installation, versions: tuple[str, str]) -> None:
    targets = [{"adapter": adapter, "weight": 50} for adapter in versions]
    installation.call("PUT", "/v1/aliases/tuned", json={"targets": targets, "reason": "canary"})
    found: dict[str, set[str]] = {}
    for user in [f"user-{number}" for number in range(8)] * 2:
        raw = client.chat.completions.with_raw_response.create(
            model="tuned", messages=MESSAGES, max_tokens=2, safety_identifier=user
        )
        assert raw.headers["x-mens-adapter"] == raw.parse().model
        found.setdefault(user, set()).add(raw.headers["x-mens-adapter"])
    assert all(len(adapters) == 1 for adapters in found.values())
    assert set.union(*found.values()) == set(versions)


def test_shadow_gets_a_copy_without_affecting_the_response(
    installation: Installation, versions: tuple[str, str]
) -> None:
    final, checkpoint = versions
    body = {"adapter": final, "shadow": {"adapter": checkpoint, "share": 1}}
    installation.call("PUT", "/v1/aliases/tuned", json=body)
    before = served_requests(installation)
    assert ANSWER in installation.ask("tuned")
    eventually(lambda: served_requests(installation) >= before + 2, what="the shadow was asked")


def test_rollback_takes_effect_at_once(
    installation: Installation,
    tuned: dict[str, Any],
    versions: tuple[str, str],
    record_property: Callable[[str, object], None],
) -> None:
    final, checkpoint = versions
    installation.call("PUT", "/v1/aliases/tuned", json={"adapter": final})
    installation.call("PUT", "/v1/aliases/tuned", json={"adapter": checkpoint})
    started = time.perf_counter()
    back = installation.call("POST", "/v1/aliases/tuned/rollback", json={"reason": "the checkpoint is half-baked"})
    record_property("rollback_seconds", time.perf_counter() - started)
    print(f"rollback: {(time.perf_counter() - started) * 1000:.1f} ms")
    assert back["adapter_id"] == final
    assert ANSWER in installation.ask("tuned")
    moves = installation.call("GET", "/v1/aliases/tuned/history")["data"]
    assert (moves[0]["verb"], moves[0]["reason"]) == ("rollback", "the checkpoint is half-baked")
    assert (moves[-1]["actor"], moves[-1]["to"]["targets"][0]["adapter"]) == (tuned["id"], final)
