"""The access matrix: every route, for every kind of caller, with objects of its own tenant, of another and of none.

A refused request must have changed nothing, and another tenant's object must look exactly like one that does not exist.
"""

from __future__ import annotations

import math
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from api.inference import lookup_cache
from api.main import create_app
from api.services import make_services
from shared.database.tenancy import SHARED, visible_to
from shared.worker_registry import WorkerMachine
from tests.api.web.access_matrix import (
    ADAPTER,
    ALIAS,
    ASSIGNMENT,
    EVAL,
    FILE,
    FINISHED,
    KEY,
    MATRIX,
    NAME,
    POLICY,
    RECEIPT,
    WEBHOOK,
    Case,
    Kind,
    Rule,
)
from tests.support.api_installation import settings_for
from tests.support.doubles import FakeJobQueue
from tests.support.tenants import ACME, NOBODY, TENANTS, Asker, Installation

pytestmark = pytest.mark.matrix

REST_OF_OLLAMA = "/api/{path:path}"
"""Responds with 404 to every path without a route."""


@pytest.fixture(scope="module")
def _without_times_of_use() -> Iterator[None]:
    """When keys were last used is written once a minute, whatever the request of that moment is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup_cache, "USE_SECONDS", math.inf)
        yield


@pytest.fixture(scope="module")
def app(
    _without_times_of_use: None, tmp_path_factory: pytest.TempPathFactory, base_folder: Path, sqlite_template: Path
) -> FastAPI:
    """One installation for the whole matrix: every case makes its own objects."""
    settings = settings_for(tmp_path_factory.mktemp("installation"), base_folder)
    shutil.copy(sqlite_template, settings.home / "mens.db")
    return create_app(services=make_services(settings, job_queue=FakeJobQueue()))


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def installation(app: FastAPI) -> Installation:
    return Installation(app)


@pytest.fixture(scope="module")
def watcher(app: FastAPI) -> Iterator[sqlite3.Connection]:
    """A connection that shows when another one has written."""
    with sqlite3.connect(app.state.services.database.url.database) as connection:
        yield connection
    connection.close()


def writes(watcher: sqlite3.Connection) -> int:
    (version,) = watcher.execute("PRAGMA data_version").fetchone()
    return int(version)


def routes(app: FastAPI) -> set[str]:
    found = set()
    for route in app.routes:
        assert isinstance(route, APIRoute), f"{route} would need an entry of its own kind"
        if route.path != REST_OF_OLLAMA:
            found |= {f"{method} {route.path}" for method in route.methods}
    return found


def test_every_route_is_in_the_matrix(app: FastAPI) -> None:
    assert routes(app) == MATRIX.keys()


# -- who may send what ----------------------------------------------------------------------------------------------


def expected(case: Case, asker: Asker, owner: str) -> tuple[int, str | None]:
    """Status, and the error's code if it is one."""
    if case.rule is Rule.OPEN:
        return case.passes, None
    if asker.refused:
        return asker.refused
    has_role = asker.is_operator if case.rule is Rule.OPERATE else asker.role.includes(case.role)
    if not has_role:
        return 403, "ROLE_INSUFFICIENT"
    if case.kind is None:
        return case.passes, None
    if owner not in ((asker.tenant,) if case.rule is Rule.OWN else visible_to(asker.tenant)):
        return 404, case.kind.unknown
    if case.rule is Rule.CHANGE and owner != asker.tenant:
        return 403, "TENANT_FORBIDDEN"
    return case.passes, None


def outcome_of(response: Any) -> tuple[int, str | None]:
    """Status and error code of a response; errors have OpenAI's shape or Ollama's."""
    if response.status_code < 400 or response.status_code in (422, 503):
        return response.status_code, None
    body = response.json()
    return response.status_code, body["error"]["mens"]["code"] if isinstance(body["error"], dict) else body["code"]


@pytest.mark.parametrize("route", MATRIX)
def test_access(route: str, client: TestClient, installation: Installation, watcher: sqlite3.Connection) -> None:
    for case in MATRIX[route]:
        for owner, thing, asker in cases(case, installation):
            before = writes(watcher)
            response = case.send(client, route, asker.headers, thing)
            outcome = expected(case, asker, owner)
            assert outcome_of(response) == outcome, (
                f"{asker.name} sends {route} about an object of {owner}: {response.text}"
            )
            assert outcome[1] is None or writes(watcher) == before, f"{asker.name} was refused, but changed something"


def cases(case: Case, installation: Installation) -> Iterator[tuple[str, str, Asker]]:
    """Owner, id and asker of each request; a new object after each request that uses one up."""
    for owner in (ACME, SHARED, NOBODY) if case.kind else (NOBODY,):
        thing = case.kind.thing(installation, owner) if case.kind else ""
        for asker in installation.askers:
            yield owner, thing, asker
            if case.kind and case.rule in (Rule.CHANGE, Rule.OWN) and expected(case, asker, owner)[1] is None:
                thing = case.kind.thing(installation, owner)


@pytest.mark.parametrize("route", [route for route, cases_ in MATRIX.items() if any(case.kind for case in cases_)])
def test_another_tenants_object_looks_like_one_that_does_not_exist(
    route: str, client: TestClient, installation: Installation
) -> None:
    for case in MATRIX[route]:
        assert case.kind
        foreign = case.kind.thing(installation, ACME)
        for asker in installation.askers:
            if asker.tenant not in (ACME, NOBODY):
                there, nowhere = (look(client, route, case, asker, thing) for thing in (foreign, case.kind.sample))
                assert there == nowhere, f"{asker.name} can see by {route} that it exists"


def look(client: TestClient, route: str, case: Case, asker: Asker, thing: str) -> tuple[object, ...]:
    """All that an asker can see of a response, except the object's own id."""
    response = case.send(client, route, asker.headers, thing)
    headers = {
        name: value
        for name, value in response.headers.items()
        if name not in ("x-request-id", "content-length", "openai-processing-ms")
    }
    text = response.text
    for id_ in sorted(thing.split(" "), key=len, reverse=True):
        text = text.replace(id_, "THING")
    return response.status_code, text, headers


# -- lists ---------------------------------------------------------------------------------------------------------

LISTS: dict[str, tuple[Kind, str]] = {
    "GET /v1/files": (FILE, "id"),
    "GET /v1/jobs": (FINISHED, "id"),
    "GET /v1/fine_tuning/jobs": (FINISHED, "id"),
    "GET /v1/evals": (EVAL, "id"),
    "GET /v1/models": (ADAPTER, "id"),
    "GET /v1/adapters": (ADAPTER, "id"),
    "GET /v1/names": (NAME, "name"),
    "GET /v1/aliases": (ALIAS, "name"),
    "GET /v1/policies": (POLICY, "name"),
    "GET /v1/policy_assignments": (ASSIGNMENT, "scope"),
    "GET /v1/receipts": (RECEIPT, "id"),
    "GET /v1/keys": (KEY, "id"),
    "GET /v1/webhook_endpoints": (WEBHOOK, "id"),
    "GET /api/tags": (ADAPTER, "name"),
}
NO_LISTS = {
    "GET /v1/openapi.json",
    "GET /v1/me",  # tests/api/routes/callers/
    "GET /v1/sign_ins",
    "GET /v1/contract/schema",
    "GET /v1/capabilities",
    "GET /v1/replicas",
    "GET /v1/quota",  # tests/api/routes/tenants/test_quotas.py
    "GET /v1/quotas",
    "GET /v1/tenants",  # tests/api/routes/tenants/test_overview.py
    "GET /v1/events",  # tests/api/polling/test_job_changes.py
    "GET /v1/audit",  # tests/api/routes/tenants/test_audit.py
    "GET /v1/workers",  # machines belong to no tenant; below
    "GET /v1/estimates/accuracy",  # tests/shared/database/test_tenants.py
    "GET /v1/jobs:count",  # tests/shared/database/lists/test_state_counts.py
    "GET /v1/usage/costs",
    "GET /v1/usage",  # tests/api/routes/tenants/test_usage.py
    "GET /v1/receipts/schema",
    "GET /api/version",
}


def test_every_list_route_is_tested() -> None:
    plain = {route for route, (case, *_) in MATRIX.items() if "{" not in route and case.rule is not Rule.OPEN}
    assert {route for route in plain if route.startswith("GET")} <= LISTS.keys() | NO_LISTS


@pytest.mark.parametrize("route", LISTS)
def test_lists_contain_the_visible_objects(route: str, client: TestClient, installation: Installation) -> None:
    kind, field = LISTS[route]
    things = {tenant: kind.thing(installation, tenant) for tenant in TENANTS}
    for asker in installation.askers:
        newest = {"order": "desc"} if "/evals" in route else {}  # the newest first, as other lists by default
        response = client.get(route.split(" ")[1], params=newest, headers=asker.headers)
        if asker.refused or not asker.role.includes(MATRIX[route][0].role):
            assert response.status_code in (401, 403)
            continue
        listed = {entry[field] for entry in entries(response.json())}
        seen = (asker.tenant,) if kind in (KEY, WEBHOOK) else visible_to(asker.tenant)
        assert {tenant for tenant, thing in things.items() if thing in listed} == set(seen), asker.name


def test_only_operators_see_the_installation_behind_a_workers_machine(
    client: TestClient, app: FastAPI, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = WorkerMachine(
        device="cpu",
        cores=8,
        fault="gpu-7:12 takes no job: its disk is full.",
        fault_code="STORAGE_FULL",
        release="0.1.0",
        disk_bytes=100,
        disk_free_bytes=0,
    )
    monkeypatch.setattr(app.state.services.workers, "machines", lambda: [machine])
    concealed = dict.fromkeys(("fault", "release", "disk_bytes", "disk_free_bytes"))
    for asker in installation.askers:
        response = client.get("/v1/workers", headers=asker.headers)
        if asker.refused:
            assert response.status_code in (401, 403)
            continue
        expected = machine.model_dump() | ({} if asker.is_operator else concealed)
        assert response.json()["data"] == [expected], asker.name


def entries(body: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = body if isinstance(body, list) else body.get("data", body.get("models"))
    return found
