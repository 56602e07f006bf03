"""Request guard: no request body is read or parsed before its key is known, and no body is too large or too slow.

FastAPI parses a body before it resolves a route's dependencies, the key among them. So this middleware, in front of
everything except the exchange, authenticates each request, and stores the result for `api/web/auth.py` and the fast
path.
"""

from __future__ import annotations

from fastapi.security.utils import get_authorization_scheme_param
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api.body_buffers import Hold
from api.errors import CLIENT_GONE, error_response_at, refused_fields_at
from api.inference.lookup_cache import AUTHENTICATED, Authenticated, Secret
from api.metrics.requests import TENANT
from api.services import Services
from api.settings import ApiSettings
from api.sign_in.cookies import halves_of
from api.web.request_body import BodyRule, body_rule, limited_receive
from shared.database.audit.actors import AuditActor, act_as
from shared.errors import Code, MensError, TooLarge, TooSlow, Unauthenticated
from shared.observability.log_context import add_log_ids

KEYED_PATHS = ("/v1/", "/api/")
"""Prefixes of the paths that require a key: all but health, the console's files, and unknown paths. Routes that sign in are
exceptions."""
BEARER = "bearer"
SIGN_IN_WAYS, SIGN_INS = "/v1/sign_in", "/v1/sign_ins"
OPEN_ROUTES = {("GET", SIGN_IN_WAYS), ("POST", "/v1/sign_in/oidc"), ("POST", "/v1/sign_in/oidc/callback")}
SIGN_IN_BODY = BodyRule(
    limit=4 << 10,
    is_streamed=False,
    too_large=TooLarge(
        Code.BODY_TOO_LARGE,
        "The body of a sign-in is larger than 4096 bytes.",
        remedy="Send the fields that GET /v1/openapi.json names, and nothing else.",
    ),
)
"""Rule for bodies of callers without a key."""


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
        if settings.console and _is_keyless(scope):
            return await self._respond(scope, receive, send, SIGN_IN_BODY, lambda _: None)
        try:
            authenticated = scope[AUTHENTICATED] = await authenticate(services, scope)
        except MensError as error:
            return await error_response_at(scope["path"], error)(scope, receive, send)
        key = authenticated.key
        scope.setdefault("state", {})[TENANT] = key.tenant
        add_log_ids(tenant=key.tenant)
        act_as(AuditActor.of_key(key.id, key.name, key.subject, address_of(scope)))
        with services.body_buffers.of(key.tenant) as hold:
            return await self._respond(scope, receive, send, body_rule(settings, scope["path"]), hold)

    async def _respond(self, scope: Scope, receive: Receive, send: Send, rule: BodyRule, hold: Hold) -> None:
        """Let a request through whose body keeps the rule."""
        seconds = scope["app"].state.services.settings.body_seconds
        try:
            receive = await limited_receive(scope, receive, rule, seconds, hold)
        except MensError as error:
            respond = refused_fields_at if error.code == Code.REQUEST_INVALID else error_response_at
            response: Response = respond(scope["path"], error)
            if isinstance(error, TooSlow):
                response.headers["Connection"] = "close"  # the rest of the body may never arrive
            return await response(scope, receive, send)
        except ClientDisconnect:
            return await Response(status_code=CLIENT_GONE)(scope, receive, send)
        return await self._app(scope, receive, send)


async def authenticate(services: Services, scope: Scope) -> Authenticated:
    """Return the key of a request.

    Raises:
        Unauthenticated: ``KEY_MISSING``.
    """
    secret = _secret(services.settings, scope)
    lookup, failures = services.lookup, services.failed_authentications
    if lookup.has_accepted(secret):
        return Authenticated(await lookup.authenticate(secret), secret)
    async with failures.lookup(address_of(scope)):
        return Authenticated(await lookup.authenticate(secret), secret)


def address_of(scope: Scope) -> str:
    """Return the client address of a request; empty for a socket without an address."""
    return str((scope.get("client") or ("",))[0])


def _is_keyless(scope: Scope) -> bool:
    """Return whether a request may come without a key: it begins or completes a sign-in."""
    method, path = scope["method"], scope["path"]
    if (method, path) in OPEN_ROUTES:
        return True
    return (method, path) == ("POST", SIGN_INS) and not any(name == b"authorization" for name, _ in scope["headers"])


def _secret(settings: ApiSettings, scope: Scope) -> Secret:
    """Return the secret of a request: the secret of its key, or both halves of a sign-in if it has no header
    ``Authorization``.
    """
    header = next((value for name, value in scope["headers"] if name == b"authorization"), None)
    if header is None and (halves := halves_of(settings, scope)):
        return halves
    header = header or b""
    scheme, secret = get_authorization_scheme_param(header.decode("latin-1"))
    if scheme.lower() != BEARER or not secret:
        raise Unauthenticated(
            Code.KEY_MISSING,
            "The request carries no API key.",
            remedy="Send `Authorization: Bearer KEY`; create a key with `mens keys create NAME`.",
        )
    return secret
