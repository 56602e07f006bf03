"""The fast path skips FastAPI's routing and dependencies for simple routes, but none of the checks."""

from __future__ import annotations

from copy import copy
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, Request, Response
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from starlette.responses import JSONResponse

from api.main import create_app
from api.services import ServicesDep
from api.settings import ApiSettings
from api.web.auth import CallerDep, KeyDep, require_caller, requires
from api.web.fast_path import FastPathRoute, fast_path_calls
from shared.database.callers.keys import Keys
from shared.database.tenancy import SHARED, Role

router = APIRouter(prefix="/v1", route_class=FastPathRoute)


def respond(caller: Any) -> Response:
    return JSONResponse({"tenant": caller.tenant, "role": caller.role})


@router.get("/direct")
async def direct(request: Request, services: ServicesDep, caller: CallerDep, key: KeyDep) -> Response:
    assert services is request.app.state.services
    assert caller.key == key
    return respond(caller)


@router.get("/trainers", dependencies=[requires(Role.TRAINER)])
async def for_trainers(request: Request, caller: CallerDep) -> Response:
    return respond(caller)


@router.get("/with-a-header")
async def with_a_header(request: Request, caller: CallerDep, word: Annotated[str, Header()]) -> Response:
    return respond(caller)


@router.get("/with-a-default")
async def with_a_default(request: Request, caller: CallerDep, word: str = "") -> Response:
    return respond(caller)


@pytest.fixture(scope="module")
def recorded() -> tuple[FastAPI, list[str]]:
    """An application with the routes above, and the paths of requests that took FastAPI's path in it."""
    seen: list[str] = []
    make_handler = APIRoute.get_route_handler

    def get_route_handler(route: APIRoute) -> Any:
        handler = make_handler(route)

        async def handle(request: Request) -> Response:
            seen.append(request.url.path)
            return await handler(request)

        return handle

    app = create_app(ApiSettings(home="/nonexistent"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(APIRoute, "get_route_handler", get_route_handler)
        app.include_router(router, dependencies=[Depends(require_caller)])
    return app, seen


@pytest.fixture
def app(app: FastAPI, recorded: tuple[FastAPI, list[str]]) -> FastAPI:
    """An application of its own, but for the routes, which are made once."""
    own = copy(recorded[0])
    own.state = app.state
    return own


@pytest.fixture
def fastapi_requests(recorded: tuple[FastAPI, list[str]]) -> list[str]:
    """Paths of this test's requests that took FastAPI's path."""
    recorded[1].clear()
    return recorded[1]


def secret(app: FastAPI, tenant: str = SHARED, role: Role = Role.VIEWER) -> str:
    return f"Bearer {Keys(app.state.services.database).create('k', tenant, role)[1]}"


def test_simple_route_takes_the_fast_path(app: FastAPI, fastapi_requests: list[str], anonymous: TestClient) -> None:
    response = anonymous.get("/v1/direct", headers={"Authorization": secret(app, "acme", Role.TRAINER)})
    assert response.json() == {"tenant": "acme", "role": "trainer"}
    assert not fastapi_requests


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer ", "Basic abc", "mens-abc", "Bearer wrong"])
def test_fast_path_without_a_valid_key_is_refused(
    fastapi_requests: list[str], anonymous: TestClient, header: str | None
) -> None:
    response = anonymous.get("/v1/direct", headers={"Authorization": header} if header else {})
    assert response.status_code == 401
    assert response.json()["error"]["mens"]["code"] == ("KEY_INVALID" if header == "Bearer wrong" else "KEY_MISSING")


def test_request_that_names_a_tenant_takes_fastapis_path(
    app: FastAPI, fastapi_requests: list[str], anonymous: TestClient
) -> None:
    operator, admin = secret(app, SHARED, Role.ADMIN), secret(app, "acme", Role.ADMIN)

    def send(authorization: str, tenant: str) -> tuple[int, Any]:
        response = anonymous.get("/v1/direct", headers={"Authorization": authorization, "X-Mens-Tenant": tenant})
        return response.status_code, response.json()

    assert send(operator, "acme") == (200, {"tenant": "acme", "role": "admin"})
    assert send(operator, "NO NAME")[0] == 422
    status, body = send(admin, "other")
    assert (status, body["error"]["mens"]["code"]) == (403, "TENANT_FORBIDDEN")
    assert fastapi_requests == ["/v1/direct"] * 3


@pytest.mark.parametrize(
    ("path", "role", "status"),
    [
        ("/v1/trainers", Role.VIEWER, 403),
        ("/v1/trainers", Role.TRAINER, 200),
        ("/v1/with-a-header", Role.ADMIN, 422),
        ("/v1/with-a-default", Role.ADMIN, 200),
    ],
)
def test_route_with_other_dependencies_takes_fastapis_path(
    app: FastAPI, fastapi_requests: list[str], anonymous: TestClient, path: str, role: Role, status: int
) -> None:
    assert anonymous.get(path, headers={"Authorization": secret(app, role=role)}).status_code == status
    assert fastapi_requests == [path]


def test_completions_take_the_fast_path_and_routes_with_a_role_do_not(app: FastAPI) -> None:
    paths = set(fast_path_calls(app))
    assert {("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("POST", "/v1/embeddings")} <= paths
    assert not {path for _, path in paths} & {"/v1/tokenize", "/v1/detokenize"}


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD"])
def test_other_method_on_a_fast_path_is_not_allowed(app: FastAPI, anonymous: TestClient, method: str) -> None:
    response = anonymous.request(method, "/v1/completions", headers={"Authorization": secret(app)})
    assert (response.status_code, response.headers["Allow"]) == (405, "OPTIONS, POST")
    assert method == "HEAD" or response.json()["error"]["mens"]["code"] == "METHOD_NOT_ALLOWED"
