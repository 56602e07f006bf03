"""A job whose alias is under a policy says so when it is submitted, and names the gates that will judge it."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.database.leases import Leases
from tests.support.builders import BASE, claimed, new_adapter
from tests.support.gate_rows import govern, receipt, store
from tests.support.parents import add_adapter, manifest_of

POLICY = """\
version: "1"
runs:
  support: {{eval: {eval}, file: {file}}}
  unused: {{eval: eval-none, file: file-none}}
gates:
  truncation: {{}}
  throughput: {{}}
  mcp_tool_schema: {{}}
  evals: {{quality: {{run: support, max_loss: 0.1}}}}
"""
EVAL = {
    "name": "Support",
    "data_source_config": {"type": "custom", "item_schema": {"type": "object"}, "include_sample_schema": True},
    "testing_criteria": [
        {"type": "string_check", "name": "e", "operation": "eq", "input": "{{ sample.output_text }}", "reference": "x"}
    ],
}


@pytest.fixture
def governed(app: FastAPI, client: TestClient) -> str:
    """Id of the eval of the policy that governs the alias ``prod``, which points to an adapter."""
    services = app.state.services
    leases = Leases(services.database, 60)
    leases.finish(claimed(services.jobs, leases), {}, adapters=[new_adapter("demo@1", final=False)])
    assert client.put("/v1/aliases/prod", json={"adapter": "demo@1"}).status_code == 200
    made = client.post("/v1/evals", json=EVAL).json()["id"]
    rows = {"file": ("rows.jsonl", b'{"item": {}}\n' * 40)}
    file = client.post("/v1/files", data={"purpose": "evals"}, files=rows).json()["id"]
    source = POLICY.format(eval=made, file=file)
    assert client.post("/v1/policies", json={"name": "strict", "source": source}).status_code == 200
    put = client.put("/v1/policy_assignments/alias:prod", json={"policy": "strict", "reason": "because"})
    assert put.status_code == 200, put.text
    return str(made)


def told(client: TestClient, body: dict[str, Any], **artifact: Any) -> list[tuple[str, str]]:
    """Level and message of the events of a new job, after that it was created."""
    contract = body["contract"] | {"artifact": artifact}
    job = client.post("/v1/jobs", json=body | {"contract": contract}).json()
    events = client.get(f"/v1/jobs/{job['id']}", params={"after": "0"}).json()["events"]
    notes = client.get(f"/v1/jobs/{job['id']}/preflight").json()["notes"]
    events = [event for event in events[1:] if "--replay" not in event["message"]]
    said = [(event["level"], event["message"]) for event in events]
    assert all(message in notes for _, message in said)
    assert client.post("/v1/plans", json={"contract": contract}).json()["preflight"]["notes"] == notes
    return said


def test_a_job_says_what_it_will_be_judged_by(client: TestClient, job_body: dict[str, Any], governed: str) -> None:
    [(level, message)] = told(client, job_body, alias="prod")
    digest = client.get("/v1/policies/strict").json()["digest"]
    assert level == "info"
    assert message == (
        f"The alias prod is governed by the policy strict ({digest[:12]}, alias:prod): once it is published, the adapter is compared"
        " with demo@1, and the alias moves to it if it passes. Gates: truncation, throughput (warns), evals.quality."
        " Runs: support (eval Support, rows of rows.jsonl)."
    )


def test_a_job_says_which_run_cannot_be_made(client: TestClient, job_body: dict[str, Any], governed: str) -> None:
    assert client.delete(f"/v1/evals/{governed}").status_code == 200
    [_, (level, message)] = told(client, job_body, alias="prod")
    assert level == "warn"
    assert message.startswith("The policy's run support cannot be created: ")
    assert governed in message


@pytest.mark.parametrize("artifact", [{}, {"alias": "other"}, {"alias": "prod", "publish": False}])
def test_other_jobs_say_nothing(
    client: TestClient, job_body: dict[str, Any], governed: str, artifact: dict[str, Any]
) -> None:
    assert told(client, job_body, **artifact) == []


def test_gate_that_cannot_pass_is_named_by_policy_job_and_plan(
    client: TestClient, job_body: dict[str, Any], governed: str
) -> None:
    rows = {"file": ("few.jsonl", b'{"item": {}}\n' * 10)}
    file = client.post("/v1/files", data={"purpose": "evals"}, files=rows).json()["id"]
    source = POLICY.format(eval=governed, file=file).replace("max_loss: 0.1", "min_score: 0.5, criterion: e")
    stored = client.post("/v1/policies", json={"name": "few", "source": source}).json()
    reason = "The gate evals.quality cannot pass (blocks the alias): mean score needs 20 items, and the run has 10."
    assert stored["notes"] == [reason]
    assigned = client.put("/v1/policy_assignments/alias:prod", json={"policy": "few", "reason": "because"}).json()
    assert assigned["notes"] == [reason]
    assert told(client, job_body, alias="prod")[1:] == [("warn", reason)]


def test_what_is_forgotten_is_named_where_it_cannot_be_shown(
    app: FastAPI, client: TestClient, job_body: dict[str, Any], governed: str
) -> None:
    services = app.state.services
    sources = {share: f'version: "1"\ngates: {{forget: {{max_degradation: {share}}}}}' for share in (0.05, 0.004)}
    notes = {
        share: client.post("/v1/policies", json={"name": "forget", "source": source}).json()["notes"]
        for share, source in sources.items()
    }
    assert notes[0.05] == []
    [note] = notes[0.004]
    assert note.startswith(
        "The gate forget cannot pass (blocks the alias): mean score of general questions: 200 items do"
    )
    # The parent was judged on too few rows to show anything about the adapters trained from it.
    parent = add_adapter(services.database, manifest_of(services.catalog().get(BASE)))
    rows = {"file": ("few.jsonl", b'{"item": {}}\n' * 10)}
    file = client.post("/v1/files", data={"purpose": "evals"}, files=rows).json()["id"]
    few = POLICY.format(eval=governed, file=file)
    receipt(services.database, parent, policy_digest=store(services.database, "few", few))
    govern(services.database, "alias:prod", sources[0.05], name="forget")
    body = {"contract": job_body["contract"] | {"adapter": {"continue_from": parent}}}
    (_, message), (level, warning) = told(client, body, alias="prod")
    assert message.endswith(" Gates: forget. Runs: the parent's support (eval Support, rows of few.jsonl).")
    assert level == "warn"
    assert warning.startswith(
        "The gate forget cannot pass (blocks the alias): mean score of the parent's support: 10 items"
    )


def test_training_that_fails_a_gate_is_named_at_submission(
    client: TestClient, job_body: dict[str, Any], governed: str
) -> None:
    source = 'version: "1"\ngates:\n  supervised_ratio: {min_pct: 99.9}\n'
    assert client.post("/v1/policies", json={"name": "much", "source": source}).json()["notes"] == []
    client.put("/v1/policy_assignments/alias:prod", json={"policy": "much", "reason": "because"})
    [_, (level, message)] = told(client, job_body, alias="prod")
    assert level == "warn"
    assert message.startswith("The gate supervised_ratio cannot pass (blocks the alias): supervised tokens (%) is ")
