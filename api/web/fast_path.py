"""Requests to models, whose callers wait for a first token: the framework's machinery stands aside where nothing needs it.

Routing a request and solving its dependencies costs the framework as much as the rest of the front door costs. So `ModelLane`, in
front of it, calls routes that want the services and the caller alone by itself. What they declare is still what the
OpenAPI document and the access rules are made from, and whatever is out of the ordinary goes the framework's way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from inspect import signature

from fastapi import FastAPI, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from fastapi.security.utils import get_authorization_scheme_param
from starlette.types import ASGIApp, Receive, Scope, Send

from api.authentication import require_caller, require_key
from api.problems import problem_response
from api.services import Services, get_services
from shared.errors import MensError

TENANT_HEADER = b"x-mens-tenant"
BEARER = "bearer"

Endpoint = Callable[..., Awaitable[Response]]


class ModelRoute(APIRoute):
    """For `APIRouter(route_class=ModelRoute)`: a route that `ModelLane` may call."""


class ModelLane:
    """Middleware that answers requests to the ordinary ones among the `ModelRoute`s by itself.

    Args:
        app: what answers everything else.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._direct: dict[tuple[str, str], Direct] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        direct = self._find(scope) if scope["type"] == "http" else None
        if direct is None:
            return await self._app(scope, receive, send)
        request = Request(scope, receive)
        if (secret := _ordinary_secret(request)) is None:
            return await self._app(scope, receive, send)
        try:
            response = await direct(request, secret)
        except MensError as error:
            response = problem_response(error)
        return await response(scope, receive, send)

    def _find(self, scope: Scope) -> Direct | None:
        if self._direct is None:  # by now the application has all its routes
            self._direct = direct_routes(scope["app"])
        return self._direct.get((scope["method"], scope["path"]))


class Direct:
    """Calls an endpoint with what it wants of the services and the caller."""

    def __init__(self, dependant: Dependant) -> None:
        assert dependant.call is not None
        assert dependant.request_param_name is not None
        self._endpoint: Endpoint = dependant.call
        self._request_name = dependant.request_param_name
        self._wanted = [(each.name, each.call) for each in dependant.dependencies if each.name]

    async def __call__(self, request: Request, secret: str) -> Response:
        """Raises:
        MensError: what the authentication and the endpoint raise.
        """
        services: Services = request.app.state.services
        caller = await require_caller(services, await services.directory.authenticate(secret))
        had: dict[object, object] = {get_services: services, require_caller: caller, require_key: caller.key}
        given = {name: had[call] for name, call in self._wanted}
        return await self._endpoint(**given, **{self._request_name: request})


def direct_routes(app: FastAPI) -> dict[tuple[str, str], Direct]:
    """What the lane answers by itself, by method and path."""
    routes = [route for route in app.routes if isinstance(route, ModelRoute) and is_ordinary(route.dependant)]
    return {(method, route.path): Direct(route.dependant) for route in routes for method in route.methods}


def is_ordinary(dependant: Dependant) -> bool:
    """Whether an endpoint takes the request, the services and the caller and nothing else, and its route asks no role."""
    assert dependant.call is not None
    calls = [each.call for each in _flat(dependant)]
    known = [call in (get_services, require_caller, require_key) or isinstance(call, HTTPBearer) for call in calls]
    names = {dependant.request_param_name, *(each.name for each in dependant.dependencies if each.name)}
    return all(known) and names == set(signature(dependant.call).parameters)


def _ordinary_secret(request: Request) -> str | None:
    """The caller's secret; None when there is none, or more to look at."""
    authorization = None
    for name, value in request.scope["headers"]:
        if name == TENANT_HEADER:
            return None
        if name == b"authorization" and authorization is None:
            authorization = value.decode("latin-1")
    scheme, secret = get_authorization_scheme_param(authorization)
    return secret if scheme.lower() == BEARER and secret else None


def _flat(dependant: Dependant) -> Iterator[Dependant]:
    for each in dependant.dependencies:
        yield each
        yield from _flat(each)
