"""The access matrix: every route, for every kind of caller, with the things of their own tenant, of another and of none.

What is refused must have changed nothing, and what is another tenant's must look exactly like what does not exist.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from api.main import create_app
from shared.tenancy import SHARED, visible_to
from tests.api.access_matrix import ADAPTER, ALIAS, FILE, FINISHED, KEY, MATRIX, Ask, Kind, Rule
from tests.api.conftest import SilentBell, settings_for
from tests.api.installation import ACME, NOBODY, TENANTS, Asker, Installation

pytestmark = pytest.mark.matrix

REST_OF_OLLAMA = "/api/{path:path}"
"""Answers everything that is no other route with 404."""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory, base_folder: Path, sqlite_template: Path) -> FastAPI:
    """One installation for the whole matrix: every ask makes its own things."""
    settings = settings_for(tmp_path_factory.mktemp("installation"), base_folder)
    shutil.copy(sqlite_template, settings.home / "mens.db")
    app = create_app(settings)
    object.__setattr__(app.state.services, "doorbell", SilentBell())
    return app


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def installation(app: FastAPI) -> Installation:
    return Installation(app)


@pytest.fixture(scope="module")
def watcher(app: FastAPI) -> Iterator[sqlite3.Connection]:
    """A connection that notices when another one has written."""
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


# -- who may ask what ----------------------------------------------------------------------------------------------


def expected(ask: Ask, asker: Asker, owner: str) -> tuple[int, str | None]:
    """Status, and the error's code if it is one."""
    if ask.rule is Rule.OPEN:
        return ask.passes, None
    if asker.refused:
        return asker.refused
    has_role = asker.is_operator if ask.rule is Rule.OPERATE else asker.role.includes(ask.role)
    if not has_role:
        return 403, "ROLE_INSUFFICIENT"
    if ask.kind is None:
        return ask.passes, None
    if owner not in ((asker.tenant,) if ask.rule is Rule.OWN else visible_to(asker.tenant)):
        return 404, ask.kind.unknown
    if ask.rule is Rule.CHANGE and owner != asker.tenant:
        return 403, "TENANT_FORBIDDEN"
    return ask.passes, None


def told(answer: Any) -> tuple[int, str | None]:
    """The same of an answer; errors are in OpenAI's shape or in Ollama's."""
    if answer.status_code < 400 or answer.status_code == 503:
        return answer.status_code, None
    body = answer.json()
    return answer.status_code, body["error"]["code"] if isinstance(body["error"], dict) else body["code"]


@pytest.mark.parametrize("route", MATRIX)
def test_access(route: str, client: TestClient, installation: Installation, watcher: sqlite3.Connection) -> None:
    for ask in MATRIX[route]:
        for owner, thing, asker in cases(ask, installation):
            before = writes(watcher)
            answer = send(client, route, ask, asker, thing)
            outcome = expected(ask, asker, owner)
            assert told(answer) == outcome, f"{asker.name} asks {route} about a thing of {owner}: {answer.text}"
            assert outcome[1] is None or writes(watcher) == before, f"{asker.name} was refused, but changed something"


def cases(ask: Ask, installation: Installation) -> Iterator[tuple[str, str, Asker]]:
    """Whose thing, which one, and who asks: another thing where the last one is spent."""
    for owner in (ACME, SHARED, NOBODY) if ask.kind else (NOBODY,):
        thing = ask.kind.thing(installation, owner) if ask.kind else ""
        for asker in installation.askers:
            yield owner, thing, asker
            if ask.kind and ask.rule in (Rule.CHANGE, Rule.OWN) and expected(ask, asker, owner)[1] is None:
                thing = ask.kind.thing(installation, owner)


def send(client: TestClient, route: str, ask: Ask, asker: Asker, thing: str) -> Any:
    method, template = route.split(" ")
    return client.request(method, ask.url(template, thing), headers=asker.headers, **ask.body(thing))


@pytest.mark.parametrize("route", [route for route, asks in MATRIX.items() if any(ask.kind for ask in asks)])
def test_what_is_anothers_looks_like_what_is_not_there(
    route: str, client: TestClient, installation: Installation
) -> None:
    for ask in MATRIX[route]:
        assert ask.kind
        foreign = ask.kind.thing(installation, ACME)
        for asker in installation.askers:
            if asker.tenant not in (ACME, NOBODY):
                there, nowhere = (look(client, route, ask, asker, thing) for thing in (foreign, ask.kind.sample))
                assert there == nowhere, f"{asker.name} can tell by {route} that it is there"


def look(client: TestClient, route: str, ask: Ask, asker: Asker, thing: str) -> tuple[object, ...]:
    """All that an asker can see of an answer, the thing's own id aside."""
    answer = send(client, route, ask, asker, thing)
    headers = {name: value for name, value in answer.headers.items() if name not in ("x-request-id", "content-length")}
    return answer.status_code, answer.text.replace(thing, "THING"), headers


# -- lists ---------------------------------------------------------------------------------------------------------

LISTS: dict[str, tuple[Kind, str]] = {
    "GET /v1/files": (FILE, "id"),
    "GET /v1/jobs": (FINISHED, "id"),
    "GET /v1/fine_tuning/jobs": (FINISHED, "id"),
    "GET /v1/models": (ADAPTER, "id"),
    "GET /v1/adapters": (ADAPTER, "id"),
    "GET /v1/aliases": (ALIAS, "name"),
    "GET /v1/keys": (KEY, "id"),
    "GET /api/tags": (ADAPTER, "name"),
}
NO_LISTS = {
    "GET /v1/openapi.json",
    "GET /v1/contract/schema",
    "GET /v1/capabilities",
    "GET /v1/replicas",
    "GET /v1/estimates/accuracy",  # tests/shared/test_tenants.py
    "GET /v1/usage",  # tests/api/test_usage.py
    "GET /api/version",
}


def test_every_list_is_known() -> None:
    plain = {route for route, (ask, *_) in MATRIX.items() if "{" not in route and ask.rule is not Rule.OPEN}
    assert {route for route in plain if route.startswith("GET")} <= LISTS.keys() | NO_LISTS


@pytest.mark.parametrize("route", LISTS)
def test_lists_hold_what_is_seen(route: str, client: TestClient, installation: Installation) -> None:
    kind, field = LISTS[route]
    things = {tenant: kind.thing(installation, tenant) for tenant in TENANTS}
    for asker in installation.askers:
        answer = client.get(route.split(" ")[1], headers=asker.headers)
        if asker.refused or not asker.role.includes(MATRIX[route][0].role):
            assert answer.status_code in (401, 403)
            continue
        listed = {entry[field] for entry in entries(answer.json())}
        seen = (asker.tenant,) if kind is KEY else visible_to(asker.tenant)
        assert {tenant for tenant, thing in things.items() if thing in listed} == set(seen), asker.name


def entries(body: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = body if isinstance(body, list) else body.get("data", body.get("models"))
    return found
