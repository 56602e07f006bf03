"""OpenAI's evals API in a whole installation: a worker that is killed during a run, with real answers."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from typing import Any

import pytest

from tests.support.waiting import eventually
from tests.system.loop import BASE, Installation

pytestmark = [pytest.mark.network, pytest.mark.timeout(300)]

EQUALS: dict[str, Any] = {
    "type": "string_check", "name": "equals", "operation": "ilike",
    "input": "{{ sample.output_text }}", "reference": "{{ item.answer }}",
}  # fmt: skip
PROMPT: dict[str, Any] = {"type": "template", "template": [{"role": "user", "content": "{{ item.question }}"}]}
SCHEMA = {"type": "object", "properties": {"question": {"type": "string"}, "answer": {"type": "string"}}}
SECONDS = 120.0
ROWS = 200
"""So many that their answers take several times as long as the second after which they are stored."""


def asking(model: str, rows: list[dict[str, Any]], tokens: int = 48) -> dict[str, Any]:
    return {
        "type": "completions",
        "model": model,
        "input_messages": PROMPT,
        "source": {"type": "file_content", "content": rows},
        "sampling_params": {"temperature": 0, "max_completion_tokens": tokens, "seed": 1},
    }


def make_eval(installation: Installation) -> str:
    config = {"type": "custom", "item_schema": SCHEMA, "include_sample_schema": True}
    body = {"name": "Support", "data_source_config": config, "testing_criteria": [EQUALS]}
    return str(installation.call("POST", "/v1/evals", json=body)["id"])


def items_of(installation: Installation, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        after = f"&after={found[-1]['id']}" if found else ""
        page = installation.call("GET", f"{path}/output_items?limit=100{after}")
        found += page["data"]
        if not page["has_more"]:
            return found


@pytest.mark.long  # two hundred real answers; with a stub: tests/worker/evaluation/test_run.py
def test_a_killed_worker_costs_no_answer_that_was_stored(installation: Installation) -> None:
    eval_id = make_eval(installation)
    rows = [{"item": {"question": f"Question {number}?", "answer": "no"}} for number in range(ROWS)]
    before = sent_requests(installation)
    run = installation.call("POST", f"/v1/evals/{eval_id}/runs", json={"data_source": asking(BASE, rows, 24)})
    path = f"/v1/evals/{eval_id}/runs/{run['id']}"
    eventually(lambda: installation.call("GET", path)["result_counts"]["total"] > 30, SECONDS)
    os.kill(installation.stack.pid("worker"), signal.SIGKILL)
    stored = {item["id"]: item["created_at"] for item in items_of(installation, path)}
    assert len(stored) < ROWS
    installation.wait_for_success(run["id"])
    items = items_of(installation, path)
    assert Counter(item["datasource_item_id"] for item in items) == Counter(range(ROWS))
    assert {item["id"]: item["created_at"] for item in items if item["id"] in stored} == stored
    [usage] = installation.call("GET", path)["per_model_usage"]
    assert usage["invocation_count"] == ROWS
    # What was in flight at the kill, and what had not been stored for a second, is asked twice; no more.
    time.sleep(3)
    assert sent_requests(installation) - before <= ROWS + (ROWS - len(stored))
    assert installation.job(run["id"])["attempt"] == 2


def sent_requests(installation: Installation) -> int:
    usage = installation.call("GET", "/v1/usage")["data"]
    return sum(entry["requests"] for entry in usage if entry["model"] == BASE)
