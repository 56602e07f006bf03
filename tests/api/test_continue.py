"""Jobs that continue from an adapter: how its name is resolved, what is refused, and what the job shows afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.artifacts.manifests import AdapterManifest
from shared.base_models.catalog import Catalog, load_catalog, save_catalog
from shared.database.lending.checkpoint_permissions import CheckpointPermissions
from shared.database.names.aliases import Actor, Aliases
from shared.database.names.foreign_names import ForeignNames
from shared.database.routing import Routing, StandsFor, Target
from shared.database.tenancy import SHARED, Role
from tests.support.builders import BASE
from tests.support.parents import add_adapter, another, manifest_of

BY = Actor(id="key-0", name="test")
FOREIGN = "ft:gpt-4o-mini-2024-07-18:acme:support:9xAbC1"


@pytest.fixture
def manifest(app: FastAPI) -> AdapterManifest:
    """Manifest of an adapter for the catalogue's base."""
    return manifest_of(app.state.services.catalog().get(BASE))


@pytest.fixture
def parent(app: FastAPI, manifest: AdapterManifest) -> str:
    """Its id, registered and published."""
    return add_adapter(app.state.services.database, manifest)


@pytest.fixture
def submit(client: TestClient, train_file: str) -> Callable[..., Any]:
    """Submit a native job that continues from an adapter; the base is left out."""

    def post(name: str, path: str = "/v1/jobs", headers: dict[str, str] | None = None, **sections: Any) -> Any:
        adapter = {"continue_from": name} | sections.pop("adapter", {})
        contract = {"data": {"train_file": train_file}, "adapter": adapter} | sections
        return client.post(path, json={"contract": contract}, headers=headers or {})

    return post


def error_of(response: Any) -> tuple[int, str, str]:
    error = response.json()["error"]
    return response.status_code, error["mens"]["code"], error["param"]


def alias(app: FastAPI, name: str, *ids: str) -> None:
    targets = tuple(Target(adapter=one, weight=10 + number) for number, one in enumerate(ids))
    Aliases(app.state.services.database).set(name, Routing(targets=targets), BY)


def test_an_id_an_alias_and_a_foreign_name_are_fixed_to_the_same_content(
    app: FastAPI, submit: Any, manifest: AdapterManifest, parent: str
) -> None:
    alias(app, "prod", parent)
    ForeignNames(app.state.services.database).set(FOREIGN, StandsFor(kind="alias", name="prod"), BY, bases=())
    jobs = [submit(name).json() for name in (parent, "prod", FOREIGN)]
    assert {job["plan"]["parent"]["digest"] for job in jobs} == {manifest.digest}
    assert len({job["plan"]["contract_digest"] for job in jobs}) == 1
    assert [job["contract"]["adapter"]["continue_from"] for job in jobs] == [parent, "prod", FOREIGN]
    contract = jobs[0]["contract"]
    assert (contract["model"]["hf_repo"], contract["adapter"]["rank"], contract["adapter"]["alpha"]) == (BASE, 8, 16)
    assert contract["adapter"]["target_modules"] == ["q_proj", "v_proj"]


def test_a_split_alias_means_the_target_with_most_weight(
    app: FastAPI, submit: Any, manifest: AdapterManifest, parent: str
) -> None:
    heavy = add_adapter(app.state.services.database, another(manifest, "heavy"))
    alias(app, "split", parent, heavy)
    assert submit("split").json()["plan"]["parent"]["id"] == heavy


def test_an_alias_that_moves_later_changes_nothing(
    app: FastAPI, client: TestClient, submit: Any, manifest: AdapterManifest, parent: str
) -> None:
    alias(app, "prod", parent)
    job = submit("prod").json()
    alias(app, "prod", add_adapter(app.state.services.database, another(manifest, "next")))
    assert client.get(f"/v1/jobs/{job['id']}").json()["plan"] == job["plan"]
    assert job["plan"]["parent"]["id"] == parent


def test_a_repeated_request_is_the_same_job_although_its_alias_has_moved(
    app: FastAPI, client: TestClient, train_file: str, manifest: AdapterManifest, parent: str
) -> None:
    alias(app, "prod", parent)
    contract = {"data": {"train_file": train_file}, "adapter": {"continue_from": "prod"}}
    headers = {"Idempotency-Key": "once"}
    first = client.post("/v1/jobs", json={"contract": contract}, headers=headers).json()
    alias(app, "prod", add_adapter(app.state.services.database, another(manifest, "next")))
    assert client.post("/v1/jobs", json={"contract": contract}, headers=headers).json()["id"] == first["id"]
    changed = contract | {"adapter": {"continue_from": "prod", "rank": 16}}
    refused = client.post("/v1/jobs", json={"contract": changed}, headers=headers)
    assert error_of(refused)[:2] == (409, "IDEMPOTENCY_CONFLICT")


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/plans"])
@pytest.mark.parametrize(
    ("name", "sections", "expected"),
    [
        ("first", {}, (404, "ADAPTER_NOT_FOUND", "adapter.continue_from")),
        (BASE, {}, (404, "ADAPTER_NOT_FOUND", "adapter.continue_from")),
        ("", {}, (422, "REQUEST_INVALID", "contract.adapter.continue_from")),
        ("PARENT", {"adapter": {"rank": 4}}, (422, "CONTINUE_SHAPE_UNSUPPORTED", "adapter.rank")),
        (
            "PARENT",
            {"adapter": {"target_modules": ["q_proj"]}},
            (422, "CONTINUE_SHAPE_UNSUPPORTED", "adapter.target_modules"),
        ),
        ("PARENT", {"model": {"hf_repo": "other"}}, (422, "CONTINUE_BASE_MISMATCH", "adapter.continue_from")),
        ("QUARANTINED", {}, (409, "CONTINUE_NOT_READY", "adapter.continue_from")),
        ("DELETING", {}, (409, "CONTINUE_NOT_READY", "adapter.continue_from")),
        ("FOREIGN", {}, (404, "ADAPTER_NOT_FOUND", "adapter.continue_from")),
    ],
)
def test_refusals(
    app: FastAPI,
    client: TestClient,
    submit: Any,
    manifest: AdapterManifest,
    parent: str,
    path: str,
    name: str,
    sections: Any,
    expected: tuple[int, str, str],
) -> None:
    services = app.state.services
    catalog = load_catalog(services.settings.catalog_path)
    other = catalog.bases[0].model_copy(update={"name": "other", "digests": {"config.json": "f" * 64}})
    save_catalog(services.settings.catalog_path, Catalog(bases=[*catalog.bases, other]))
    names = {"PARENT": parent}
    if name == "QUARANTINED":
        failed = {"published": False, "certificates": {"http://replica": {"failed": ["effect"]}}}
        names[name] = add_adapter(services.database, another(manifest, "bad"), **failed)
    elif name == "DELETING":
        names[name] = add_adapter(services.database, another(manifest, "old"))
        client.delete(f"/v1/models/{names[name]}")
    elif name == "FOREIGN":
        names[name] = add_adapter(services.database, another(manifest, "theirs"), "acme")
    response = submit(names.get(name, name), path, **sections)
    assert error_of(response) == expected
    assert services.job_queue.enqueued == []


def test_an_adapter_that_was_only_stored_can_be_continued(app: FastAPI, submit: Any, manifest: AdapterManifest) -> None:
    stored = add_adapter(app.state.services.database, manifest, published=False)
    assert submit(stored).json()["plan"]["parent"]["id"] == stored


def test_a_lent_adapter_can_be_continued(app: FastAPI, submit: Any, manifest: AdapterManifest) -> None:
    services = app.state.services
    lent = add_adapter(services.database, manifest, "acme")
    _, secret = services.keys.create("guest", "guest", Role.TRAINER)
    CheckpointPermissions(services.database, "acme").grant(lent, ["guest"])
    headers = {"Authorization": f"Bearer {secret}"}
    assert submit(lent, headers=headers).json()["plan"]["parent"]["id"] == lent


def test_a_parent_cannot_be_deleted_until_its_job_has_ended(client: TestClient, submit: Any, parent: str) -> None:
    job = submit(parent).json()
    refused = client.delete(f"/v1/models/{parent}")
    assert error_of(refused)[:2] == (409, "MODEL_IN_USE")
    assert job["id"] in refused.json()["error"]["message"]
    client.post(f"/v1/jobs/{job['id']}/cancel")
    assert client.delete(f"/v1/models/{parent}").status_code == 200


# -- OpenAI's wire ---------------------------------------------------------------------------------------------------


@pytest.fixture
def stock(app: FastAPI, anonymous: TestClient) -> Iterator[openai.OpenAI]:
    """OpenAI's Python client, strict about what comes back."""
    _, secret = app.state.services.keys.create("stock", SHARED, Role.ADMIN)
    with openai.OpenAI(
        base_url="http://testserver/v1", api_key=secret, http_client=anonymous, _strict_response_validation=True
    ) as client:
        yield client


@pytest.mark.parametrize("kind", ["id", "alias", "foreign name"])
def test_openais_client_continues_from_a_tuned_model(
    app: FastAPI, stock: openai.OpenAI, train_file: str, manifest: AdapterManifest, parent: str, kind: str
) -> None:
    alias(app, "prod", parent)
    ForeignNames(app.state.services.database).set(FOREIGN, StandsFor(kind="adapter", name=parent), BY, bases=())
    model = {"id": parent, "alias": "prod", "foreign name": FOREIGN}[kind]
    job = stock.fine_tuning.jobs.create(model=model, training_file=train_file, suffix="second")
    (listed,) = [one for one in stock.fine_tuning.jobs.list() if one.id == job.id]
    for found in (job, listed, stock.fine_tuning.jobs.retrieve(job.id)):
        assert found.model == model
        mens = found.model_extra["mens"]
        assert mens["parent"] == {"id": parent, "digest": manifest.digest, "step": manifest.step}
        assert mens["base_model"] == BASE
    events = [event for event in stock.fine_tuning.jobs.list_events(job.id) if "--replay" not in event.message]
    assert [event.level for event in events] == ["info"]


def create(client: TestClient, train_file: str, **body: Any) -> Any:
    return client.post("/v1/fine_tuning/jobs", json={"training_file": train_file} | body)


def test_the_learning_rate_is_the_bases(client: TestClient, train_file: str, parent: str) -> None:
    body = {"hyperparameters": {"learning_rate_multiplier": 2.0}}
    jobs = [create(client, train_file, model=model, **body).json()["id"] for model in (BASE, parent)]
    rates = [client.get(f"/v1/jobs/{job}").json()["contract"]["exec"]["learning_rate"] for job in jobs]
    assert rates[0] == rates[1]


def test_our_block_names_the_parent_next_to_a_base_or_alone(client: TestClient, train_file: str, parent: str) -> None:
    block = {"adapter": {"continue_from": parent}}
    for model in (BASE, None):
        job = create(client, train_file, model=model, mens=block).json()
        assert (job["model"], job["mens"]["parent"]["id"]) == (BASE, parent)
    assert create(client, train_file, model=BASE).json()["mens"]["parent"] is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"model": "PARENT", "mens": {"adapter": {"rank": 4}}}, (400, "CONTINUE_SHAPE_UNSUPPORTED", "adapter.rank")),
        (
            {"model": "PARENT", "mens": {"adapter": {"continue_from": "PARENT"}}},
            (400, "CONTRACT_INVALID", "mens.adapter.continue_from"),
        ),
        ({"model": "QUARANTINED"}, (409, "CONTINUE_NOT_READY", "model")),
        ({"model": "first@0"}, (404, "MODEL_NOT_FOUND", "model")),
        (
            {"model": BASE, "mens": {"adapter": {"continue_from": "none"}}},
            (404, "ADAPTER_NOT_FOUND", "mens.adapter.continue_from"),
        ),
        (
            {"mens": {"adapter": {"continue_from": "none"}}},
            (404, "ADAPTER_NOT_FOUND", "mens.adapter.continue_from"),
        ),
    ],
)
def test_openais_route_refuses_with_its_own_fields(
    app: FastAPI,
    client: TestClient,
    train_file: str,
    manifest: AdapterManifest,
    parent: str,
    body: dict[str, Any],
    expected: tuple[int, str, str],
) -> None:
    failed = {"published": False, "certificates": {"http://replica": {"failed": ["effect"]}}}
    bad = add_adapter(app.state.services.database, another(manifest, "bad"), **failed)
    names = {"PARENT": parent, "QUARANTINED": bad}
    body = body | ({"model": names.get(body["model"], body["model"])} if "model" in body else {})
    assert error_of(create(client, train_file, **body)) == expected
