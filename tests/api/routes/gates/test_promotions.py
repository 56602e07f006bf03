"""POST /v1/promotions:evaluate: verdicts, missing evidence, and errors that name the invalid field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.routes.gates import promotions
from shared.gates import cycle_kpis
from tests.support.scorecards import promotion_cycle

PATH = "/v1/promotions:evaluate"


@pytest.fixture(autouse=True)
def _quick_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycle_kpis, "RESAMPLES", 99)


def body(*seeds: int, **fields: Any) -> dict[str, Any]:
    return {"cycles": [promotion_cycle(seed, tasks=20).model_dump(mode="json") for seed in seeds], **fields}


def test_two_cycles_are_eligible_and_one_is_not(client: TestClient) -> None:
    found = client.post(PATH, json=body(1, 2)).json()
    assert (found["verdict"], found["eligible"], found["missing"]) == ("eligible", True, [])
    assert len({cycle["id"] for cycle in found["cycles"]}) == 2
    first = found["cycles"][0]["deltas"][0]
    assert (first["kpi"], first["group"], first["items"], len(first["interval"])) == (
        "compile_pass_at_1",
        "syntax",
        20,
        2,
    )
    alone = client.post(PATH, json=body(1)).json()
    assert (alone["verdict"], alone["eligible"]) == ("insufficient_evidence", False)
    assert "2 distinct cycles are needed" in alone["missing"][0]


def test_a_field_that_is_wrong_is_named(client: TestClient) -> None:
    wrong = body(1)
    wrong["cycles"][0]["events"][3]["attempts"] = 0
    wrong["cycles"][0]["spec"]["extra"] = 1
    response = client.post(PATH, json=wrong)
    assert response.status_code == 422
    named = response.text
    assert "REQUEST_INVALID" in named
    assert "cycles.0.events.3.attempts" in named
    assert "cycles.0.spec.extra" in named


@pytest.mark.parametrize("cycles", [[], None])
def test_no_cycle_is_refused(client: TestClient, cycles: Any) -> None:
    assert client.post(PATH, json={"cycles": cycles}).status_code == 422


@pytest.mark.parametrize("field", ["condition_id", "task_id", "label", "model_id", "adapter_revision", "system_prompt"])
def test_half_a_character_is_refused_with_its_field(client: TestClient, field: str) -> None:
    sent = body(1, 2)
    for part in (sent["cycles"][0]["events"][0], sent["cycles"][0]["spec"], sent["cycles"][0]["spec"]["conditions"][0]):
        if field in part:
            part[field] = "HALF"
    raw = json.dumps(sent).replace("HALF", "\\ud800")
    response = client.post(PATH, content=raw, headers={"Content-Type": "application/json"})
    assert response.status_code == 422
    assert field in response.json()["error"]["param"]


def test_an_alias_has_to_be_what_a_cycle_is_about(client: TestClient) -> None:
    response = client.post(PATH, json=body(1, 2, alias="absent"))
    assert response.status_code == 404
    assert "ALIAS_NOT_FOUND" in response.text


def test_more_events_than_can_be_read_in_a_moment_are_refused(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promotions, "MAX_EVENTS", 79)
    refused = client.post(PATH, json=body(1, 2))
    assert refused.status_code == 422
    assert "80 events together; at most 79" in refused.text
    monkeypatch.setattr(promotions, "MAX_EVENTS", 80)
    assert client.post(PATH, json=body(1, 2)).status_code == 200
