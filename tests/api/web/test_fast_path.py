"""Routes to models go around FastAPI's machinery, and never around what it would have checked."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, Request, Response
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from starlette.responses import JSONResponse

from api import model_route
from api.authentication import CallerDep, KeyDep, require_caller, requires
from api.main import create_app
from api.model_route import ModelRoute
from api.services import ServicesDep
from shared.keys import Keys
from shared.tenancy import SHARED, Role

router = APIRouter(route_class=ModelRoute)


def told(caller: Any) -> Response:
    return JSONResponse({"tenant": caller.tenant, "role": caller.role})


@router.get("/direct")
async def direct(request: Request, services: ServicesDep, caller: CallerDep, key: KeyDep) -> Response:
    assert services is request.app.state.services
    assert caller.key == key
    return told(caller)


@router.get("/trainers", dependencies=[requires(Role.TRAINER)])
async def for_trainers(request: Request, caller: CallerDep) -> Response:
    return told(caller)


@router.get("/with-a-header")
async def with_a_header(request: Request, caller: CallerDep, word: Annotated[str, Header()]) -> Response:
    return told(caller)


@router.get("/with-a-default")
async def with_a_default(request: Request, caller: CallerDep, word: str = "") -> Response:
    return told(caller)


@pytest.fixture
def app(app: FastAPI) -> FastAPI:
    """With routes of its own, because some are added."""
    own = create_app(app.state.services.settings)
    own.state.services = app.state.services
    return own


@pytest.fixture
def usual(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of requests that FastAPI solved."""
    seen: list[str] = []
    solve = APIRoute.get_route_handler

    def get_route_handler(route: APIRoute) -> Any:
        solved = solve(route)

        async def handle(request: Request) -> Response:
            seen.append(request.url.path)
            return await solved(request)

        return handle

    monkeypatch.setattr(APIRoute, "get_route_handler", get_route_handler)
    app.include_router(router, dependencies=[Depends(require_caller)])
    return seen


def secret(app: FastAPI, tenant: str = SHARED, role: Role = Role.VIEWER) -> str:
    return f"Bearer {Keys(app.state.services.database).create('k', tenant, role)[1]}"


def test_the_services_and_the_caller_are_given_directly(app: FastAPI, usual: list[str], anonymous: TestClient) -> None:
    answer = anonymous.get("/direct", headers={"Authorization": secret(app, "acme", Role.TRAINER)})
    assert answer.json() == {"tenant": "acme", "role": "trainer"}
    assert not usual


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer ", "Basic abc", "mens-abc", "Bearer wrong"])
def test_without_a_good_key_nothing_is_given(usual: list[str], anonymous: TestClient, header: str | None) -> None:
    answer = anonymous.get("/direct", headers={"Authorization": header} if header else {})
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == ("KEY_INVALID" if header == "Bearer wrong" else "KEY_MISSING")


def test_a_named_tenant_goes_the_usual_way(app: FastAPI, usual: list[str], anonymous: TestClient) -> None:
    operator, admin = secret(app, SHARED, Role.ADMIN), secret(app, "acme", Role.ADMIN)

    def ask(authorization: str, tenant: str) -> tuple[int, Any]:
        answer = anonymous.get("/direct", headers={"Authorization": authorization, "X-Mens-Tenant": tenant})
        return answer.status_code, answer.json()

    assert ask(operator, "acme") == (200, {"tenant": "acme", "role": "admin"})
    assert ask(operator, "NO NAME")[0] == 422
    status, body = ask(admin, "other")
    assert (status, body["error"]["code"]) == (403, "TENANT_FORBIDDEN")
    assert usual == ["/direct"] * 3


@pytest.mark.parametrize(
    ("path", "role", "status"),
    [
        ("/trainers", Role.VIEWER, 403),
        ("/trainers", Role.TRAINER, 200),
        ("/with-a-header", Role.ADMIN, 422),
        ("/with-a-default", Role.ADMIN, 200),
    ],
)
def test_what_asks_for_more_is_solved_by_fastapi(
    app: FastAPI, usual: list[str], anonymous: TestClient, path: str, role: Role, status: int
) -> None:
    assert anonymous.get(path, headers={"Authorization": secret(app, role=role)}).status_code == status
    assert usual == [path]


def test_routes_of_completions_are_direct_and_those_with_a_role_are_not(app: FastAPI) -> None:
    direct = set(model_route.direct_routes(app))
    assert {("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("POST", "/v1/embeddings")} <= direct
    assert not {path for _, path in direct} & {"/v1/tokenize", "/v1/detokenize"}


@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS"])
def test_another_method_is_told_so(app: FastAPI, anonymous: TestClient, method: str) -> None:
    answer = anonymous.request(method, "/v1/completions", headers={"Authorization": secret(app)})
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "METHOD_NOT_ALLOWED")
