"""Routes to models, whose callers wait for a first token: FastAPI's machinery stands aside where nothing needs it.

Solving the dependencies costs FastAPI as much as the rest of the front door costs. A route that wants the services and the
caller alone gets them directly; what it declares is still what the OpenAPI document and the access rules are made from.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from inspect import signature
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from fastapi.security.utils import get_authorization_scheme_param

from api.authentication import require_caller, require_key
from api.services import Services, get_services

TENANT_HEADER = "x-mens-tenant"
BEARER = "bearer"

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class ModelRoute(APIRoute):
    """For `APIRouter(route_class=ModelRoute)`. A request or a route that is out of the ordinary goes FastAPI's way."""

    def get_route_handler(self) -> Handler:
        """What FastAPI calls for each request."""
        usual = super().get_route_handler()
        return _direct(self.dependant, usual) if _is_ordinary(self.dependant) else usual


def _direct(dependant: Dependant, usual: Handler) -> Handler:
    endpoint, request_name = dependant.call, dependant.request_param_name
    assert endpoint is not None
    assert request_name is not None
    wanted = {each.name: each.call for each in dependant.dependencies if each.name}

    async def handle(request: Request) -> Response:
        scheme, secret = get_authorization_scheme_param(request.headers.get("authorization"))
        if scheme.lower() != BEARER or not secret or TENANT_HEADER in request.headers:
            return await usual(request)
        services: Services = request.app.state.services
        caller = await require_caller(services, await services.directory.authenticate(secret))
        had: dict[object, object] = {get_services: services, require_caller: caller, require_key: caller.key}
        given = {name: had[call] for name, call in wanted.items()}
        response: Response = await endpoint(**given, **{request_name: request})
        return response

    return handle


def _is_ordinary(dependant: Dependant) -> bool:
    """Whether an endpoint takes the request, the services and the caller and nothing else, and its route asks no role."""
    assert dependant.call is not None
    calls = [each.call for each in _flat(dependant)]
    known = [call in (get_services, require_caller, require_key) or isinstance(call, HTTPBearer) for call in calls]
    names = {dependant.request_param_name, *(each.name for each in dependant.dependencies if each.name)}
    return all(known) and names == set(signature(dependant.call).parameters)


def _flat(dependant: Dependant) -> Iterator[Dependant]:
    for each in dependant.dependencies:
        yield each
        yield from _flat(each)
