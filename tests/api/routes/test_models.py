"""Lists of models and adapters: pages, and their cost as the number of adapters grows."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import openai.types
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.database.jobs import Jobs
from shared.database.leases import Leases
from tests.support.builders import BASE, claimed, new_adapter
from tests.support.database_work import Work, counted_work

FEW, MANY = 25, 600
MANIFEST = {"layers": {f"layer-{number}": "x" * 40 for number in range(60)}}


def publish(app: FastAPI, numbers: range, alias: str) -> None:
    database = app.state.services.database
    made = [new_adapter(f"demo@{number:064}", step=number, manifest=MANIFEST) for number in numbers]
    leases = Leases(database, 600.0)
    leases.finish(claimed(Jobs(database), leases, base_model=BASE), {}, adapters=made, alias=alias)


def work_of(app: FastAPI, client: TestClient, path: str) -> Work:
    with counted_work(app.state.services.database) as work:
        assert client.get(path).status_code == 200
    return work


def test_page_of_adapters_costs_the_same_among_many(app: FastAPI, client: TestClient) -> None:
    paths = ["/v1/adapters", f"/v1/adapters?after=demo@{FEW - 5:064}", "/v1/adapters?limit=5"]
    publish(app, range(FEW), "few")
    works = [work_of(app, client, path) for path in paths]
    publish(app, range(FEW, MANY), "many")
    for path, few in zip(paths, works, strict=True):
        many = work_of(app, client, path)
        assert few.json_bytes >= 5 * len(json.dumps(MANIFEST))
        assert many.queries <= few.queries
        assert many.json_bytes <= 2 * few.json_bytes
        assert many.steps <= 2 * few.steps


@pytest.mark.parametrize("path", ["/v1/models", "/api/tags"])
def test_list_of_many_models_is_read_once_and_without_manifests(app: FastAPI, client: TestClient, path: str) -> None:
    empty = work_of(app, client, path)
    empty_again = work_of(app, client, path)
    publish(app, range(MANY), "prod")
    first = work_of(app, client, path)
    again = [work_of(app, client, path) for _ in range(3)]
    assert first.queries <= empty.queries
    assert first.json_bytes < 1_000, "the alias's targets, no manifest"
    assert max(work.queries for work in again) <= empty_again.queries
    assert max(work.steps for work in again) <= 2 * empty_again.steps


def test_models_list_bases_aliases_and_adapters_and_forget_what_is_deleted(app: FastAPI, client: TestClient) -> None:
    publish(app, range(2), "prod")
    first, second = (f"demo@{number:064}" for number in range(2))
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == [BASE, "prod", second, first]
    for model in listed["data"]:
        assert client.get(f"/v1/models/{model['id']}").json()["owned_by"] == model["owned_by"]
    tags = client.get("/api/tags").json()["models"]
    assert [tag["name"] for tag in tags] == [BASE, "prod", second, first]
    aliased = listed["data"][1]["mens"]["adapter_id"]
    deleted = first if aliased == second else second
    assert client.delete(f"/v1/models/{deleted}").status_code == 200
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == [BASE, "prod", aliased]
    assert [tag["name"] for tag in client.get("/api/tags").json()["models"]] == [BASE, "prod", aliased]


def test_models_that_retention_will_delete_have_a_shutdown_date(app: FastAPI, client: TestClient) -> None:
    services = app.state.services
    settings = services.settings.model_copy(update={"retain_unaliased_days": 30})
    object.__setattr__(services, "settings", settings)
    publish(app, range(2), "prod")
    listed = client.get("/v1/models").json()["data"]
    for model in listed:
        assert client.get(f"/v1/models/{model['id']}").json()["shutdown_date"] == model["shutdown_date"]
        openai.types.Model.model_validate_json(json.dumps(model), strict=True)
    dates = {model["id"]: model["shutdown_date"] for model in listed}
    aliased = next(model["mens"]["adapter_id"] for model in listed if model["id"] == "prod")
    other = next(name for name in dates if "@" in name and name != aliased)
    until = datetime.now(UTC) + timedelta(days=30)
    assert dates == {BASE: None, "prod": None, aliased: None, other: dates[other]}
    assert dates[other] in {str((until - timedelta(minutes=1)).date()), str(until.date())}


def test_adapters_come_in_pages(app: FastAPI, client: TestClient) -> None:
    publish(app, range(FEW), "prod")
    page = client.get("/v1/adapters").json()
    assert (len(page["data"]), page["has_more"]) == (20, True)
    rest = client.get("/v1/adapters", params={"after": page["data"][-1]["id"]}).json()
    assert (len(rest["data"]), rest["has_more"]) == (FEW - 20, False)
    found = client.get("/v1/adapters", params={"q": f"{7:064}"}).json()["data"]
    assert [adapter["step"] for adapter in found] == [7]
