"""Fast path for requests to models, whose callers wait for a first token: skips FastAPI's routing and dependencies.

FastAPI's routing and dependency resolution cost as much as the rest of the gateway. So `FastPathMiddleware`, in front
of it, calls the routes whose endpoints take only the services and the caller. The declarations of these routes still
produce the OpenAPI document and the access rules, and a request or a route of any other kind takes FastAPI's path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from inspect import signature

from fastapi import FastAPI, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import error_response_at
from api.inference.lookup_cache import AUTHENTICATED, Authenticated
from api.services import Services, get_services
from api.web.auth import require_caller, require_key
from shared.errors import MensError

TENANT_HEADER = b"x-mens-tenant"

Endpoint = Callable[..., Awaitable[Response]]


class FastPathRoute(APIRoute):
    """A route that `FastPathMiddleware` may call, for `APIRouter(route_class=FastPathRoute)`."""


class FastPathMiddleware:
    """Middleware that responds to requests for `FastPathRoute`s without special dependencies.

    Args:
        app: responds to all other requests.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._calls: dict[tuple[str, str], FastPathCall] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if self._calls is None:  # at the first request the application has all its routes
            self._calls = fast_path_calls(scope["app"])
        call = self._calls.get((scope["method"], scope["path"]))
        # If a tenant is named, FastAPI applies the rules.
        if call is None or any(name == TENANT_HEADER for name, _ in scope["headers"]):
            return await self._app(scope, receive, send)
        scope["route"] = call.route  # as in FastAPI's router
        try:
            response = await call(Request(scope, receive))
        except MensError as error:
            response = error_response_at(scope["path"], error)
        return await response(scope, receive, send)


class FastPathCall:
    """Calls a route's endpoint with the services and the caller, as far as it takes them."""

    def __init__(self, route: APIRoute) -> None:
        dependant = route.dependant
        assert dependant.call is not None
        assert dependant.request_param_name is not None
        self._endpoint: Endpoint = dependant.call
        self._request_name = dependant.request_param_name
        self.route = route
        self._parameters = [
            (dependency.name, dependency.call) for dependency in dependant.dependencies if dependency.name
        ]

    async def __call__(self, request: Request) -> Response:
        """Authorize the caller and call the endpoint.

        Raises:
            MensError: from the endpoint.
        """
        services: Services = request.app.state.services
        authenticated: Authenticated = request.scope[AUTHENTICATED]
        caller = await require_caller(services, authenticated.key)
        values: dict[object, object] = {get_services: services, require_caller: caller, require_key: caller.key}
        arguments = {name: values[call] for name, call in self._parameters}
        return await self._endpoint(**arguments, **{self._request_name: request})


def fast_path_calls(app: FastAPI) -> dict[tuple[str, str], FastPathCall]:
    """Return the application's fast paths, by method and path."""
    routes = [route for route in app.routes if isinstance(route, FastPathRoute) and is_simple(route.dependant)]
    return {(method, route.path): FastPathCall(route) for route in routes for method in route.methods}


def is_simple(dependant: Dependant) -> bool:
    """Return whether an endpoint takes only the request, the services and the caller, and needs no role."""
    assert dependant.call is not None
    calls = [dependency.call for dependency in _flat(dependant)]
    are_simple = [call in (get_services, require_caller, require_key) or isinstance(call, HTTPBearer) for call in calls]
    names = {
        dependant.request_param_name,
        *(dependency.name for dependency in dependant.dependencies if dependency.name),
    }
    return all(are_simple) and names == set(signature(dependant.call).parameters)


def _flat(dependant: Dependant) -> Iterator[Dependant]:
    for dependency in dependant.dependencies:
        yield dependency
        yield from _flat(dependency)
