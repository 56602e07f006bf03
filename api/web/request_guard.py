"""Request guard: no request body is read or parsed before its key is known, and no body is too large or too slow.

FastAPI parses a body before it resolves a route's dependencies, the key among them. So this middleware, outside
everything except the exchange, authenticates each request, and stores the result for `api/web/auth.py` and the fast
path.
"""

from __future__ import annotations

from fastapi.security.utils import get_authorization_scheme_param
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import CLIENT_GONE, error_response_at, refused_fields_at
from api.inference.lookup_cache import AUTHENTICATED, Authenticated
from api.metrics.requests import TENANT
from api.services import Services
from api.web.request_body import body_rule, limited_receive
from shared.database.audit.actors import AuditActor, act_as
from shared.errors import Code, MensError, TooSlow, Unauthenticated
from shared.observability.log_context import add_log_ids

KEYED_PATHS = ("/v1/", "/api/")
"""Prefixes of the paths that require a key: all but those of `api/routes/health.py`, and unknown paths."""
BEARER = "bearer"


class RequestGuard:
    """Middleware that refuses requests without a known key, and bodies over their route's limits of size and time."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond, or let the request through."""
        if scope["type"] != "http" or not scope["path"].startswith(KEYED_PATHS):
            return await self._app(scope, receive, send)
        services: Services = scope["app"].state.services
        settings = services.settings
        try:
            authenticated = scope[AUTHENTICATED] = await authenticate(services, scope)
        except MensError as error:
            return await error_response_at(scope["path"], error)(scope, receive, send)
        key = authenticated.key
        scope.setdefault("state", {})[TENANT] = key.tenant
        add_log_ids(tenant=key.tenant)
        act_as(AuditActor("key", key.id, key.name, _address(scope)))
        with services.body_buffers.of(key.tenant) as hold:
            try:
                rule = body_rule(settings, scope["path"])
                receive = await limited_receive(scope, receive, rule, settings.body_seconds, hold)
            except MensError as error:
                respond = refused_fields_at if error.code == Code.REQUEST_INVALID else error_response_at
                response: Response = respond(scope["path"], error)
                if isinstance(error, TooSlow):
                    response.headers["Connection"] = "close"  # the rest may never arrive
                return await response(scope, receive, send)
            except ClientDisconnect:
                return await Response(status_code=CLIENT_GONE)(scope, receive, send)
            return await self._app(scope, receive, send)


async def authenticate(services: Services, scope: Scope) -> Authenticated:
    """Return the key of a request.

    Raises:
        Unauthenticated: ``KEY_MISSING``, ``KEY_INVALID``. TooMany: ``AUTHENTICATION_THROTTLED``: the client's address
            has tried too many unknown keys, and this key is unknown too. Unavailable: ``DATABASE_UNAVAILABLE``.
    """
    secret = _secret(scope)
    lookup, failures = services.lookup, services.failed_authentications
    if lookup.has_known(secret):
        return Authenticated(await lookup.authenticate(secret), secret)
    async with failures.lookup(_address(scope)):
        return Authenticated(await lookup.authenticate(secret), secret)


def _address(scope: Scope) -> str:
    """Return the client address of a request; empty for a socket without an address."""
    return str((scope.get("client") or ("",))[0])


def _secret(scope: Scope) -> str:
    header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    scheme, secret = get_authorization_scheme_param(header.decode("latin-1"))
    if scheme.lower() != BEARER or not secret:
        raise Unauthenticated(
            Code.KEY_MISSING,
            "The request carries no API key.",
            remedy="Send `Authorization: Bearer KEY`; make one with `mens keys create NAME`.",
        )
    return secret
