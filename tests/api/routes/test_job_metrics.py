"""GET /v1/jobs/{id}/metrics: curves with every extreme, CSV with every step, and a 304 for an unchanged ETag."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import pytest
from anyio import CapacityLimiter
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.data_view import tenant_turns
from shared.database.jobs import Jobs
from shared.database.leases import Lease, Leases
from shared.job_series import ABSENT, CHUNK_STEPS, NOT_FINITE, SeriesChunk
from tests.support.builders import claimed, new_adapter

STEPS = 5000
PEAK, HOLE = 3210, 4321


@pytest.fixture
def lease(app: FastAPI) -> Lease:
    """A job that trains; its series are a curve with one peak and one loss that is not finite, and two validations."""
    database = app.state.services.database
    leases = Leases(database, 600.0)
    lease = claimed(Jobs(database), leases)
    train = {step: 1 + 1 / step for step in range(1, STEPS + 1)} | {PEAK: 8.0, HOLE: NOT_FINITE}
    leases.report(
        lease, events=[], series=[*chunks("train_loss", train), *chunks("valid_loss", {2500: 0.75, STEPS: 0.5})]
    )
    return lease


def chunks(name: str, values: dict[int, float]) -> list[SeriesChunk]:
    made: dict[int, list[float]] = {}
    for step, value in values.items():
        number, position = divmod(step - 1, CHUNK_STEPS)
        made.setdefault(number, [ABSENT] * CHUNK_STEPS)[position] = value
    return [SeriesChunk.of(name, number, each) for number, each in made.items()]


def metrics(client: TestClient, lease: Lease, **query: Any) -> Any:
    answer = client.get(f"/v1/jobs/{lease.job.id}/metrics", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_curves_have_the_shape_that_is_documented(client: TestClient, lease: Lease) -> None:
    told = metrics(client, lease)
    series = told.pop("series")
    assert told == {
        "object": "job.metrics",
        "job_id": lease.job.id,
        "last_step": STEPS,
        "attempts": [{"attempt": 1, "first_step": 1}],
        "bucket": 16,
        "available": ["train_loss", "valid_loss"],
    }
    assert series["valid_loss"] == {"step": [2500, STEPS], "value": [0.75, 0.5]}
    points = dict(zip(series["train_loss"]["step"], series["train_loss"]["value"], strict=True))
    assert (points[1], points[PEAK], points[HOLE], points[STEPS]) == (2.0, 8.0, None, 1.0002)
    assert len(points) <= 1002


def test_range_is_cut_before_it_is_thinned(client: TestClient, lease: Lease) -> None:
    told = metrics(client, lease, series="train_loss", from_step=3201, to_step=3300, points=100)
    assert (told["bucket"], told["series"].keys()) == (1, {"train_loss"})
    assert told["series"]["train_loss"]["step"] == list(range(3201, 3301))
    few = metrics(client, lease, series="train_loss", points=2)["series"]["train_loss"]
    assert {1, PEAK, HOLE, STEPS} <= set(few["step"])
    assert len(few["step"]) <= 5
    for query in ({"from_step": STEPS + 1}, {"from_step": 20, "to_step": 10}):
        assert metrics(client, lease, **query)["series"]["train_loss"] == {"step": [], "value": []}


def test_series_that_does_not_exist_yet_is_empty(client: TestClient, lease: Lease) -> None:
    assert metrics(client, lease, series="reward_margin,valid_loss")["series"] == {
        "reward_margin": {"step": [], "value": []},
        "valid_loss": {"step": [2500, STEPS], "value": [0.75, 0.5]},
    }


def test_csv_has_every_step(client: TestClient, lease: Lease) -> None:
    answer = client.get(f"/v1/jobs/{lease.job.id}/metrics", headers={"Accept": "text/csv"})
    assert (answer.headers["content-type"], answer.headers["vary"]) == (
        "text/csv; charset=utf-8",
        "Accept, Accept-Encoding",
    )
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [int(row["step"]) for row in rows] == list(range(1, STEPS + 1))
    assert (rows[PEAK - 1]["train_loss"], rows[HOLE - 1]["train_loss"], rows[0]["valid_loss"]) == ("8", "nan", "")
    assert math.isclose(float(rows[6]["train_loss"]), 1 + 1 / 7, rel_tol=1e-6)
    few = client.get(
        f"/v1/jobs/{lease.job.id}/metrics?series=valid_loss&from_step=2000", headers={"Accept": "text/csv, */*;q=0.1"}
    )
    assert few.text == f"step,valid_loss\n2500,0.75\n{STEPS},0.5\n"
    path = f"/v1/jobs/{lease.job.id}/metrics?series=reward_margin,valid_loss&from_step=2000"
    absent = client.get(path, headers={"Accept": "text/csv"})
    assert absent.text == f"step,reward_margin,valid_loss\n2500,,0.75\n{STEPS},,0.5\n"


@pytest.mark.parametrize("accept", ["application/json", "text/csv"])
def test_answers_are_compressed_for_those_who_accept_it(client: TestClient, lease: Lease, accept: str) -> None:
    path = f"/v1/jobs/{lease.job.id}/metrics"
    plain = client.get(path, headers={"Accept": accept, "Accept-Encoding": "identity"})
    short = client.get(path, headers={"Accept": accept, "Accept-Encoding": "br, gzip"})
    assert "content-encoding" not in plain.headers
    assert short.headers["content-encoding"] == "gzip"
    assert short.headers["content-type"] == plain.headers["content-type"]
    assert int(short.headers["content-length"]) < int(plain.headers["content-length"]) / 2
    assert short.text == plain.text


def test_csv_waits_for_its_turn_and_curves_do_not(
    app: FastAPI, client: TestClient, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_turns, "WAIT_SECONDS", 0.1)
    monkeypatch.setattr(app.state.services.curve_turns, "_all", CapacityLimiter(0))
    path = f"/v1/jobs/{lease.job.id}/metrics"
    refused = client.get(path, headers={"Accept": "text/csv"})
    assert (refused.status_code, refused.json()["error"]["mens"]["code"]) == (429, "CONCURRENCY_LIMITED")
    assert client.get(path).status_code == 200


def test_unchanged_curves_are_a_304_until_the_job_changes(app: FastAPI, client: TestClient, lease: Lease) -> None:
    path = f"/v1/jobs/{lease.job.id}/metrics"
    etag = client.get(path).headers["etag"]
    again = client.get(path, headers={"If-None-Match": etag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert client.get(f"{path}?points=50", headers={"If-None-Match": etag}).status_code == 200
    assert client.get(path, headers={"If-None-Match": etag, "Accept": "text/csv"}).status_code == 200
    Leases(app.state.services.database, 600.0).report(lease, events=[], series=chunks("train_loss", {STEPS + 1: 1.0}))
    assert client.get(path, headers={"If-None-Match": etag}).status_code == 200


def test_curves_stay_when_the_job_has_ended(app: FastAPI, client: TestClient, lease: Lease) -> None:
    Leases(app.state.services.database, 600.0).finish(lease, {}, adapters=[new_adapter()])
    assert metrics(client, lease)["last_step"] == STEPS


def test_job_without_series_has_empty_curves(app: FastAPI, client: TestClient) -> None:
    services = app.state.services
    lease = claimed(services.jobs, Leases(services.database, 600.0))
    told = metrics(client, lease)
    assert (told["last_step"], told["attempts"], told["bucket"], told["available"], told["series"]) == (
        0,
        [],
        1,
        [],
        {},
    )
    empty = client.get(f"/v1/jobs/{lease.job.id}/metrics", headers={"Accept": "text/csv"})
    assert empty.text == "step\n"


@pytest.mark.parametrize(
    "query", ["points=1", "points=5001", "from_step=0", "to_step=0", "series=A", "series=", "series=a,,b", "step=1"]
)
def test_wrong_queries_are_refused(client: TestClient, lease: Lease, query: str) -> None:
    answer = client.get(f"/v1/jobs/{lease.job.id}/metrics?{query}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "REQUEST_INVALID")
