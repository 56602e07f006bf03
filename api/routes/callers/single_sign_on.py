"""Single sign-on: ``/v1/sign_in/oidc``, through the identity provider that the settings name.

The page begins with the hash of its token, goes to the provider, comes back, and hands the provider's answer in, together with
the token itself. So an answer counts only in the browser that has begun, and the API never redirects.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Literal

from anyio import to_thread
from fastapi import APIRouter, Header, Request, Response, status
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field

from api.routes.callers.sign_ins import CHALLENGE_PATTERN, SignInNow
from api.services import Services, ServicesDep
from api.sign_in.cookies import SIGN_IN_HEADER, set_cookie
from api.sign_in.people import name_of, person_of
from api.sign_in.provider import IdentityProvider
from api.sign_in.transport import check_same_origin, check_transport, page_origin
from api.web.request_guard import address_of
from shared.database.callers.sign_ins import PendingSignIn
from shared.errors import Code, Forbidden, InvalidRequest, NotFound

CALLBACK = "/console/callback"
"""The page's address to which the provider sends the browser back."""
SHORTEST_TOKEN = 43
"""Characters of 256 random bits in base64. A shorter value is therefore not a token."""
router = APIRouter(prefix="/v1/sign_in/oidc", tags=["sign-in"])


class NewProviderSignIn(BaseModel):
    """Request to begin to sign in through the identity provider."""

    model_config = ConfigDict(extra="forbid")
    challenge: str = Field(
        pattern=CHALLENGE_PATTERN,
        description="SHA-256, in hex, of the characters that the page will send as X-Mens-Sign-In: at least 256 random bits.",
    )


class ProviderSignIn(BaseModel):
    """A sign-in that has begun."""

    object: Literal["sign_in.provider"] = "sign_in.provider"
    authorization_url: str = Field(
        description=f"Address at the identity provider to go to. It sends the browser back to `{CALLBACK}` within ten minutes."
    )


class ProviderAnswer(BaseModel):
    """Parameters with which the identity provider has sent the browser back."""

    model_config = ConfigDict(extra="forbid")
    state: str = Field(min_length=1, max_length=128)
    code: str | None = Field(None, min_length=1, max_length=3000, description="In an answer without `error`.")
    iss: str | None = Field(None, max_length=512)
    error: str | None = Field(None, pattern=r"^[a-z_]{1,64}$", description="The provider's reason to refuse.")


@router.post("")
async def begin_provider_sign_in(body: NewProviderSignIn, request: Request, services: ServicesDep) -> ProviderSignIn:
    """Begin to sign in through the identity provider. No key is needed."""
    provider = _provider(services, request)
    # Anyone may begin a sign-in. Guessed keys are counted separately, so that they do not block sign-ins.
    services.begun_sign_ins.count(address_of(request.scope))
    pending = PendingSignIn(
        challenge=body.challenge,
        nonce=secrets.token_urlsafe(32),
        code_verifier=secrets.token_urlsafe(48),
        redirect_uri=page_origin(services.settings.public_url, request.headers) + CALLBACK,
    )

    def begin() -> str:
        provider.check()
        return provider.authorization_url(pending, services.sign_ins.begin(pending))

    return ProviderSignIn(authorization_url=await to_thread.run_sync(begin, limiter=services.signing_in))


@router.post("/callback", status_code=status.HTTP_201_CREATED)
async def finish_provider_sign_in(
    body: ProviderAnswer,
    request: Request,
    response: Response,
    services: ServicesDep,
    token: Annotated[
        str,
        Header(
            alias=SIGN_IN_HEADER,
            min_length=SHORTEST_TOKEN,
            max_length=512,
            description="Token whose SHA-256 was `challenge`.",
        ),
    ],
) -> SignInNow:
    """Sign in with the identity provider's answer, once. The response sets a cookie, like that of `POST /v1/sign_ins`.

    The person gets tenant and role of their groups. The sign-in ends after 12 hours at the latest.
    """
    provider, address = _provider(services, request), address_of(request.scope)
    async with services.failed_authentications.lookup(address):
        pending = await run_in_threadpool(services.sign_ins.take_pending, body.state, token)
    if body.error is not None:
        raise Forbidden(
            Code.SIGN_IN_REFUSED,
            f"The identity provider did not sign you in: {body.error}.",
            remedy="Begin again, or ask the provider's admin whether you may use Mens.",
        )
    if body.code is None:
        message = "The identity provider's answer has neither a code nor an error."
        raise InvalidRequest(Code.REQUEST_INVALID, message, remedy="Begin again.", param="code")
    code = body.code

    def finish() -> tuple[SignInNow, str]:
        claims = provider.claims(pending, code, body.iss)
        try:
            person = person_of(claims, services.settings)
        except Forbidden:
            services.sign_ins.end_person(services.settings.oidc_issuer, claims["sub"], name_of(claims), address)
            raise
        made, cookie = services.sign_ins.create_for_person(person, pending.challenge, address)
        return SignInNow.of(made, is_current=True), cookie

    now, cookie = await to_thread.run_sync(finish, limiter=services.signing_in)
    set_cookie(services.settings, response, cookie)
    return now


def _provider(services: Services, request: Request) -> IdentityProvider:
    """Return the identity provider, for a request of the console's own page.

    Raises:
        NotFound: ``SIGN_IN_PROVIDER_NOT_SET``.
    """
    check_same_origin(request.headers)
    check_transport(services.settings.public_url, request.headers)
    if services.identity_provider is None:
        raise NotFound(
            Code.SIGN_IN_PROVIDER_NOT_SET,
            "This installation has no identity provider.",
            remedy="Sign in with a key. An operator: set MENS_OIDC_ISSUER (docs/console.md).",
        )
    return services.identity_provider
