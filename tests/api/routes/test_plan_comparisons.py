"""POST /v1/plans:compare: settings that differ with their sources, results, the baseline, and fields that are not
compared.
"""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.names.aliases import Actor, Aliases
from shared.database.records import Kind
from shared.database.routing import Routing
from tests.support.builders import claimed, new_adapter, submission

COMPARE = "/v1/plans:compare"


def train(client: TestClient, body: dict[str, Any], **exec_: Any) -> str:
    contract = body["contract"] | {"exec": exec_}
    return str(client.post("/v1/jobs", json=body | {"contract": contract}).json()["id"])


@pytest.fixture
def jobs(client: TestClient, job_body: dict[str, Any]) -> list[str]:
    """Two jobs that differ in one setting of their contracts."""
    return [train(client, job_body, epochs=2, batch_size=2), train(client, job_body, epochs=4, batch_size=2)]


def rows_of(found: Any) -> dict[str, Any]:
    return {row["path"]: row for row in found["rows"]}


def test_settings_that_differ_are_marked_with_who_decided_them(client: TestClient, jobs: list[str]) -> None:
    found = client.post(COMPARE, json={"jobs": jobs}).json()
    assert [job["id"] for job in found["jobs"]] == jobs
    assert found["baseline"] == jobs[0]
    assert rows_of(found)["exec.epochs"] == {
        "path": "exec.epochs",
        "values": [2, 4],
        "sources": ["explicit", "explicit"],
        "differs": True,
    }
    assert rows_of(found)["exec.batch_size"]["differs"] is False
    assert {path for path, row in rows_of(found).items() if row["differs"]} == {"exec.epochs", "plan.optimizer_steps"}
    assert rows_of(found)["exec.weight_decay"]["sources"] == ["default", "default"]
    reverse = client.post(COMPARE, json={"jobs": jobs[::-1], "baseline": jobs[0]}).json()
    assert rows_of(reverse)["exec.epochs"]["values"] == [4, 2]
    assert reverse["baseline"] == jobs[0]


def test_a_value_within_a_field_has_the_source_of_the_field(app: FastAPI, client: TestClient) -> None:
    sources = {"data.template_arguments": "explicit", "data.mode": "default"}
    made = []
    for depth in (1, 2):
        contract = {"data": {"template_arguments": {"depth": depth}, "mode": "strict", "other": 1}}
        asked = submission(contract=contract, preflight={"sources": sources})
        made.append(Jobs(app.state.services.database).submit(asked)[0].id)
    rows = rows_of(client.post(COMPARE, json={"jobs": made}).json())
    row = rows["data.template_arguments.depth"]
    assert (row["values"], row["sources"]) == ([1, 2], ["explicit", "explicit"])
    assert rows["data.mode"]["sources"] == ["default", "default"]
    assert rows["data.other"]["sources"] == [None, None]


def test_results_stand_in_the_order_of_the_jobs(app: FastAPI, client: TestClient, jobs: list[str]) -> None:
    leases = Leases(app.state.services.database, 60.0)
    lease = leases.claim(jobs[1], "worker-1")
    assert lease
    samples = [{"tuned": " yes", "reference": "yes"}, {"tuned": None, "reference": "no"}]
    result = {"last_train_loss": 0.5, "self_evaluation": {"loss": {"tuned": 0.25}, "sample_answers": samples}}
    leases.finish(lease, result)
    found = {row["path"]: row["values"] for row in client.post(COMPARE, json={"jobs": jobs}).json()["results"]}
    assert found["last_train_loss"] == [None, 0.5]
    assert found["self_evaluation.loss.tuned"] == [None, 0.25]
    assert (found["sample_answers.equal"], found["sample_answers.rows"]) == ([None, 1], [None, 2])
    assert found["seconds"][0] is None
    assert found["seconds"][1] >= 0
    assert "tokens_per_second" not in found


def test_job_whose_adapter_the_alias_points_to_is_the_baseline(
    app: FastAPI, client: TestClient, job_body: dict[str, Any]
) -> None:
    job_body["contract"]["artifact"] = {"alias": "billing"}
    jobs = [train(client, job_body, epochs=2), train(client, job_body, epochs=3)]
    database = app.state.services.database
    leases = Leases(database, 60.0)
    lease = leases.claim(jobs[1], "worker-1")
    assert lease
    leases.finish(lease, {"adapter_id": "demo@1"}, adapters=[new_adapter("demo@1")])
    assert client.post(COMPARE, json={"jobs": jobs}).json()["baseline"] == jobs[0]
    Aliases(database).set("billing", Routing.to("demo@1"), Actor(id="key-1", name="ada"))
    assert client.post(COMPARE, json={"jobs": jobs}).json()["baseline"] == jobs[1]


def test_what_cannot_be_compared_is_refused(app: FastAPI, client: TestClient, jobs: list[str]) -> None:
    database = app.state.services.database
    merge = claimed(Jobs(database), Leases(database, 60.0), kind=Kind.MERGE).job.id

    def refusal(**body: Any) -> tuple[int, str, str]:
        answer = client.post(COMPARE, json=body)
        error = answer.json()["error"]
        return answer.status_code, error["code"], error["param"]

    assert refusal(jobs=[jobs[0], merge]) == (400, "REQUEST_INVALID", "jobs.1")
    assert refusal(jobs=[jobs[0], "ftjob-none"])[:2] == (404, "JOB_NOT_FOUND")
    assert refusal(jobs=[jobs[0], jobs[0]])[:2] == (422, "REQUEST_INVALID")
    assert refusal(jobs=jobs, baseline="ftjob-none")[:2] == (422, "REQUEST_INVALID")
    assert refusal(jobs=[])[:2] == (422, "REQUEST_INVALID")
    assert refusal(jobs=[f"ftjob-{place}" for place in range(21)])[:2] == (422, "REQUEST_INVALID")
