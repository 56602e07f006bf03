"""The identity provider that people sign in through (OpenID Connect): its addresses, and the person that its answer
names.

The authorization code flow with PKCE. Authlib builds the requests and checks the claims, joserfc the signature; both
are imported only where a provider is configured. Addresses are kept for minutes; keys are requested at each sign-in, so
a key that the provider has withdrawn or replaced is never used. No token of the provider is kept.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from typing import Any
from urllib.parse import urlsplit

import httpx

from api.settings import ApiSettings
from shared.database.callers.sign_ins import PendingSignIn
from shared.errors import Code, MensError, Unauthenticated, Unavailable
from shared.http_retry import authorities, describe_outcome, is_temporary, keyed_client

ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA")
"""Accepted signature algorithms: only those with a private key of the provider, so neither ``none`` nor an algorithm
with a shared secret.
"""
KEY_TYPES = {"RSA", "EC", "OKP"}
LEEWAY_SECONDS = 30
"""Largest difference between the clocks of provider and API."""
# The second also ends an answer that arrives byte by byte.
READ_SECONDS, TOTAL_SECONDS = 5.0, 10.0
MOST_BYTES = 256 << 10
"""Largest answer of the provider."""
DISCOVERY_SECONDS, FAILURE_SECONDS = 300.0, 3.0
"""Seconds for which the provider's addresses, and a failure to get them, are kept, because strangers can cause such
requests.
"""
SUBJECT_PATTERN = r"[\x20-\x7e]{1,255}"
"""Pattern of a person's name at the provider: OpenID Connect limits its length, and it is a single line because it is
shown in the audit log.
"""
DISCOVERY = "/.well-known/openid-configuration"


class IdentityProvider:
    """Requests to the provider that the settings name. Used by several threads at once.

    Args:
        settings: settings that name an issuer.
    """

    def __init__(self, settings: ApiSettings) -> None:
        self._issuer, self._client_id = settings.oidc_issuer, settings.oidc_client_id
        self._secret, self._scopes = settings.oidc_client_secret.get_secret_value(), settings.oidc_scopes
        self._http = keyed_client(
            read_seconds=READ_SECONDS,
            connect_seconds=READ_SECONDS,
            connections=8,
            tls=authorities(settings.oidc_ca_bundle),
        )
        # Sign-ins at the same time share one request for the addresses, also while the provider does not respond.
        self._discovering = threading.Lock()
        self._outcome: tuple[float, dict[str, Any] | MensError] | None = None
        self._last_metadata: dict[str, Any] = {}

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def check(self) -> None:
        """Find the provider's addresses before a sign-in is stored that could not begin.

        Raises:
            Unavailable: ``SIGN_IN_PROVIDER_UNAVAILABLE``.
            Unauthenticated: ``SIGN_IN_PROVIDER_INVALID``.
        """
        self._metadata()

    def authorization_url(self, pending: PendingSignIn, state: str) -> str:
        """Return the provider's address to which the browser goes to sign in.

        Raises:
            Unavailable, Unauthenticated: the errors of :meth:`check`.
        """
        from authlib.oauth2.client import OAuth2Client

        client = OAuth2Client(None, self._client_id, scope=self._scopes, code_challenge_method="S256")
        url, _ = client.create_authorization_url(
            self._address("authorization_endpoint"),
            state=state,
            code_verifier=pending.code_verifier,
            redirect_uri=pending.redirect_uri,
            nonce=pending.nonce,
        )
        return str(url)

    def claims(self, pending: PendingSignIn, code: str, issuer: str | None) -> dict[str, Any]:
        """Exchange a code for the provider's signed statement of who has signed in.

        Args:
            pending: the sign-in that the code answers.
            code: code of the provider's answer; it can be used once.
            issuer: issuer of the provider's answer (RFC 9207); None: it has none.

        Raises:
            Unavailable: ``SIGN_IN_PROVIDER_UNAVAILABLE``.
            Unauthenticated: ``SIGN_IN_PROVIDER_INVALID``: the code is refused, or the statement is expired or is not
                from this provider, for this installation and for this sign-in.
        """
        is_required = self._metadata().get("authorization_response_iss_parameter_supported") is True
        if issuer != self._issuer and (issuer is not None or is_required):
            raise _invalid("its answer names another issuer")
        token = self._exchange(pending, code)
        keys = self._ask("GET", self._address("jwks_uri")).get("keys")
        return self._verified(token, keys if isinstance(keys, list) else [], pending.nonce)

    def end_session_url(self, return_to: str) -> str | None:
        """Return the address at which the provider ends its own session; None if the provider has none, or this process
        has not found the provider's addresses yet. Signing out does not wait for the provider, or for threads that do.
        """
        from authlib.common.urls import add_params_to_uri

        metadata = self._last_metadata
        with suppress(MensError):
            if "end_session_endpoint" in metadata:
                parameters = {"client_id": self._client_id, "post_logout_redirect_uri": return_to}
                address = self._safe_address(metadata, "end_session_endpoint")
                return str(add_params_to_uri(address, list(parameters.items())))
        return None

    def _exchange(self, pending: PendingSignIn, code: str) -> dict[str, Any]:
        """Return the answer of the token endpoint."""
        from authlib.oauth2.auth import ClientAuth
        from authlib.oauth2.rfc6749.parameters import prepare_token_request

        url, headers = self._address("token_endpoint"), {"Content-Type": "application/x-www-form-urlencoded"}
        body = prepare_token_request(
            "authorization_code", code=code, redirect_uri=pending.redirect_uri, code_verifier=pending.code_verifier
        )
        url, headers, body = ClientAuth(self._client_id, self._secret, self._auth_method()).prepare(
            "POST", url, headers, body
        )
        return self._ask("POST", url, headers, body)

    def _auth_method(self) -> str:
        """Return how the client's secret is sent: in the body where possible, since its encoding in a header is
        ambiguous.
        """
        supported = self._metadata().get("token_endpoint_auth_methods_supported")
        if not self._secret:
            return "none"
        is_by_body = isinstance(supported, list) and "client_secret_post" in supported
        return "client_secret_post" if is_by_body else "client_secret_basic"

    def _verified(self, token: Mapping[str, Any], keys: list[Any], nonce: str) -> dict[str, Any]:
        """Return the claims of an ID token after checking its signature and claims."""
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet, import_key
        from joserfc.jws import JWSRegistry

        imported_keys = []
        for key in keys:
            # A key of a kind that joserfc does not know does not invalidate the other keys.
            with suppress(JoseError, ValueError, TypeError, KeyError):
                if key["kty"] in KEY_TYPES and key.get("use", "sig") == "sig":
                    imported_keys.append(import_key(key))
        options: dict[str, Any] = {
            "iss": {"essential": True, "value": self._issuer},
            "aud": {"essential": True, "value": self._client_id},
        }
        try:
            registry = JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)
            signed = jwt.decode(token["id_token"], KeySet(imported_keys), registry=registry)
            # The access token is not used, so its hash proves nothing here.
            parameters = {"nonce": nonce, "client_id": self._client_id}
            claims = CodeIDToken(signed.claims, signed.header, options, parameters)
            claims.validate(leeway=LEEWAY_SECONDS)
        except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
            # A stranger may have chosen the token's contents, so the message names only the kind of fault.
            raise _invalid(f"its ID token is not valid ({type(error).__name__}{_claim_of(error)})") from None
        if not isinstance(claims["sub"], str) or not re.fullmatch(SUBJECT_PATTERN, claims["sub"]):
            raise _invalid("its ID token has no valid subject")
        return dict(claims)

    def _metadata(self) -> dict[str, Any]:
        with self._discovering:
            if self._outcome is not None:
                at, discovered = self._outcome
                kept = FAILURE_SECONDS if isinstance(discovered, MensError) else DISCOVERY_SECONDS
                if time.monotonic() - at < kept:
                    if isinstance(discovered, MensError):
                        # A copy, because several threads may raise it, and each adds its own traceback.
                        raise copy(discovered)
                    return discovered
            try:
                metadata = self._ask("GET", self._issuer.rstrip("/") + DISCOVERY)
                if metadata.get("issuer") != self._issuer:
                    raise _invalid("its discovery names an issuer other than MENS_OIDC_ISSUER")
            except MensError as error:
                self._outcome = (time.monotonic(), error)
                raise
            self._outcome, self._last_metadata = (time.monotonic(), metadata), metadata
            return metadata

    def _address(self, name: str) -> str:
        return self._safe_address(self._metadata(), name)

    def _safe_address(self, metadata: Mapping[str, Any], name: str) -> str:
        """Return one of the provider's addresses. It must use HTTPS, like the issuer; plain HTTP is allowed only if the
        issuer uses it, on this machine.
        """
        url = metadata.get(name)
        address = urlsplit(url) if isinstance(url, str) else None
        issuer = urlsplit(self._issuer)
        is_safe = address is not None and (
            address.scheme == "https" or (address.scheme == issuer.scheme and address.hostname == issuer.hostname)
        )
        if not isinstance(url, str) or not is_safe or "@" in urlsplit(url).netloc:
            raise _invalid(f"its discovery has no {name} with https://")
        return url

    def _ask(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, body: str | None = None
    ) -> dict[str, Any]:
        """Return the JSON object of the provider's answer, within limits of size and time. Redirects are not followed."""
        began, content = time.monotonic(), bytearray()
        # Uncompressed, so that a small answer does not become a large one.
        request_headers = {"Accept": "application/json", "Accept-Encoding": "identity", **(headers or {})}
        try:
            with self._http.stream(method, url, headers=request_headers, content=body) as response:
                for part in response.iter_raw():
                    content += part
                    if len(content) > MOST_BYTES:
                        raise _invalid("its answer is too large")
                    if time.monotonic() - began > TOTAL_SECONDS:
                        raise _unavailable("does not respond in time")
        except httpx.RequestError as error:
            raise _unavailable(f"returns {describe_outcome(error)}") from None
        except httpx.InvalidURL:
            raise _invalid("its discovery has an invalid address") from None
        if not response.is_success:
            raise (_unavailable if is_temporary(response) else _invalid)(f"responds with {describe_outcome(response)}")
        try:
            answer = json.loads(content)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise _invalid("its answer is not a JSON object")
        return answer


def _claim_of(error: Exception) -> str:
    """Return the name of the claim that failed its check."""
    claim = getattr(error, "claim", None)
    return f": {claim}" if claim in {"iss", "aud", "azp", "exp", "iat", "nbf", "nonce", "sub"} else ""


def _unavailable(reason: str) -> Unavailable:
    return Unavailable(
        Code.SIGN_IN_PROVIDER_UNAVAILABLE,
        f"The identity provider {reason}.",
        remedy=(
            "Try again in a moment, or sign in with a key. An operator: check MENS_OIDC_ISSUER and the connection to "
            "it."
        ),
    )


def _invalid(reason: str) -> Unauthenticated:
    return Unauthenticated(
        Code.SIGN_IN_PROVIDER_INVALID,
        f"The identity provider's answer is refused: {reason}.",
        remedy=(
            "Begin again, or sign in with a key. If the problem persists, ask an operator to check the provider and "
            "MENS_OIDC_…."
        ),
    )
