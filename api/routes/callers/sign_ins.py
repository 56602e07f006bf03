"""Signing in to the console: ``/v1/sign_in``, ``/v1/sign_ins``, ``/v1/sign_in_codes``.

A sign-in takes a key, or a code that a key has made. It consists of two halves: a cookie that scripts cannot read, and a token that
the page makes, keeps, and sends as ``X-Mens-Sign-In``. Neither half grants access alone.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response, status
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field

from api.inference.lookup_cache import AUTHENTICATED, Authenticated
from api.services import Services, ServicesDep
from api.sign_in.cookies import clear_cookie, set_cookie
from api.sign_in.transport import check_same_origin, check_transport, page_origin
from api.web.auth import BEARER, CallerDep, TenantHeader, check_role, require_caller
from api.web.params import Id, WholeList
from api.web.request_guard import address_of
from shared.database.callers.sign_ins import SignIn, sign_in_not_found
from shared.database.tenancy import Role
from shared.errors import Code, InvalidRequest, MensError, Unauthenticated

CURRENT = "current"
CHALLENGE_PATTERN = r"^[0-9a-f]{64}$"
keyless_router = APIRouter(prefix="/v1", tags=["sign-in"])
"""Routes that answer without a key; the request guard limits their bodies."""
router = APIRouter(prefix="/v1", tags=["sign-in"])
_key = HTTPBearer(auto_error=False, description="A key created with `mens keys create NAME`.")


class SignInRefusal(BaseModel):
    """Reason why no one signs in at this address."""

    code: str
    message: str
    remedy: str


class SignInWays(BaseModel):
    """The ways to sign in."""

    object: Literal["sign_in.ways"] = "sign_in.ways"
    ways: list[Literal["key", "code", "oidc"]] = Field(
        description=(
            "`key` and `code` of POST /v1/sign_ins; `oidc`, where an identity provider is configured, of POST "
            "/v1/sign_in/oidc."
        )
    )
    refused: SignInRefusal | None = Field(
        description="Reason why this address does not accept sign-ins, such as plain HTTP; null if it does."
    )


class NewSignIn(BaseModel):
    """Request to sign in: by the key that the request carries, or by a code."""

    model_config = ConfigDict(extra="forbid")
    challenge: str = Field(
        pattern=CHALLENGE_PATTERN,
        description=(
            "SHA-256, in hex, of the characters that the page will send as X-Mens-Sign-In: at least 256 random bits."
        ),
    )
    code: str | None = Field(
        None, min_length=1, max_length=128, description="From POST /v1/sign_in_codes, in place of a key."
    )


class SignInNow(SignIn):
    """A sign-in, as its caller sees it."""

    object: Literal["sign_in"] = "sign_in"
    is_current: bool = Field(description="True for the sign-in that this request was made with.")

    @classmethod
    def of(cls, sign_in: SignIn, *, is_current: bool) -> SignInNow:
        """Return a sign-in as a caller sees it."""
        return cls(**sign_in.model_dump(), is_current=is_current)


class EndedSignIn(SignInNow):
    """A sign-in that was ended."""

    end_session_url: str | None = Field(
        None,
        description=(
            "Address at which the identity provider ends its own session, after a sign-in through it; null: it has "
            "no such address, or this process has not found it yet."
        ),
    )


class SignInCode(BaseModel):
    """A code that signs in once. ``code`` is shown only here."""

    object: Literal["sign_in_code"] = "sign_in_code"
    code: str
    expires_at: datetime


@keyless_router.get("/sign_in")
async def ways_to_sign_in(request: Request, services: ServicesDep) -> SignInWays:
    """Ways to sign in to the console. No key is needed."""
    try:
        check_transport(services.settings.public_url, request.headers)
    except MensError as error:
        refused = SignInRefusal(code=str(error.code), message=error.message, remedy=error.remedy)
        return SignInWays(ways=[], refused=refused)
    ways: list[Literal["key", "code", "oidc"]] = ["key", "code"]
    return SignInWays(ways=[*ways, "oidc"] if services.identity_provider else ways, refused=None)


@keyless_router.post("/sign_ins", status_code=status.HTTP_201_CREATED)
async def sign_in(
    body: NewSignIn,
    request: Request,
    response: Response,
    services: ServicesDep,
    _: Annotated[object, Depends(_key)],
    tenant: TenantHeader = None,
) -> SignInNow:
    """Sign in, with a key as the bearer token or with a code.

    The response sets a cookie, which is one half of the sign-in; the other is the token whose SHA-256 is `challenge`. Requests
    that carry both, the token as X-Mens-Sign-In, act with the rights of the key, until they are idle for 8 hours or 24 hours old.
    """
    check_same_origin(request.headers)
    check_transport(services.settings.public_url, request.headers)
    authenticated: Authenticated | None = request.scope.get(AUTHENTICATED)
    if authenticated is not None and isinstance(authenticated.secret, str):
        if body.code is not None:
            message = "The request has both a key and a code, but only one of them can sign in."
            raise InvalidRequest(Code.REQUEST_INVALID, message, remedy="Leave one of them out.", param="code")
        await require_caller(services, authenticated.key, tenant)
        made, cookie = await run_in_threadpool(services.sign_ins.create, authenticated.secret, body.challenge)
    elif body.code is not None:
        address = address_of(request.scope)
        async with services.failed_authentications.lookup(address):
            made, cookie = await run_in_threadpool(services.sign_ins.create_by_code, body.code, body.challenge, address)
    else:
        raise Unauthenticated(
            Code.KEY_MISSING,
            "The request carries neither a key nor a code.",
            remedy='Send `Authorization: Bearer KEY`, or {"code": …} with a code from `mens open`.',
        )
    set_cookie(services.settings, response, cookie)
    return SignInNow.of(made, is_current=True)


@router.post("/sign_in_codes", status_code=status.HTTP_201_CREATED, dependencies=BEARER)
def create_sign_in_code(request: Request, services: ServicesDep, _: CallerDep) -> SignInCode:
    """Make a code that signs in to the console with the caller's key: once, within 60 seconds."""
    authenticated: Authenticated = request.scope[AUTHENTICATED]
    assert isinstance(authenticated.secret, str)
    code, expires_at = services.sign_ins.create_code(authenticated.secret)
    return SignInCode(code=code, expires_at=expires_at)


@router.get("/sign_ins")
def list_sign_ins(request: Request, services: ServicesDep, caller: CallerDep) -> WholeList[SignInNow]:
    """Sign-ins that have not ended, newest first: of the caller's key; for an admin, of the tenant's keys."""
    current = _current(services, request)
    key_id = None if caller.role.includes(Role.ADMIN) else caller.key.id
    entries = services.sign_ins.list(caller.tenant, key_id)
    return WholeList(data=[SignInNow.of(entry, is_current=entry.id == current) for entry in entries])


@router.delete("/sign_ins/{sign_in_id}")
def end_sign_in(
    sign_in_id: Id, request: Request, response: Response, services: ServicesDep, caller: CallerDep
) -> EndedSignIn:
    """End a sign-in; `current` is the one that this request was made with. Every API process refuses it within a quarter of a second.

    An admin may end the sign-ins of all keys of the tenant; other callers may end those of their own key.
    """
    current = _current(services, request)
    if sign_in_id == CURRENT and current is None:
        raise sign_in_not_found(CURRENT)
    ended_id = current if sign_in_id == CURRENT and current else sign_in_id
    tenant = caller.tenant
    if ended_id in {entry.id for entry in services.sign_ins.list(caller.key.tenant, caller.key.id)}:
        tenant = caller.key.tenant
    else:
        check_role(caller, Role.ADMIN)
    ended = services.sign_ins.end(ended_id, tenant)
    end_session_url = None
    if ended_id == current:
        clear_cookie(services.settings, response)
        if caller.key.subject is not None and services.identity_provider:
            return_to = page_origin(services.settings.public_url, request.headers) + "/"
            end_session_url = services.identity_provider.end_session_url(return_to)
    return EndedSignIn(**ended.model_dump(), is_current=ended_id == current, end_session_url=end_session_url)


def _current(services: Services, request: Request) -> str | None:
    """Return the id of the sign-in that a request was made with; None for a key."""
    authenticated: Authenticated = request.scope[AUTHENTICATED]
    secret = authenticated.secret
    return None if isinstance(secret, str) else services.sign_ins.get(secret).id
