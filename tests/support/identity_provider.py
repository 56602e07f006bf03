"""An identity provider on loopback that follows the rules of OpenID Connect, except for those that a test makes it
break.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey

CLIENT, SECRET = "mens", "s3cret+of%the&client"
ALICE = {"sub": "00u1-alice", "email": "alice@acme.example", "groups": ["everyone", "ml"]}
KEY = ECKey.generate_key("P-256", parameters={"kid": "one", "use": "sig", "alg": "ES256"})
OTHER_KEY = ECKey.generate_key("P-256", parameters={"kid": "one", "use": "sig", "alg": "ES256"})
Reply = Callable[[BaseHTTPRequestHandler], None]


def unsigned(claims: dict[str, Any]) -> str:
    """A token with the algorithm `none`, which has no signature."""
    return f"{_encoded({'alg': 'none'})}.{_encoded(claims)}."


def signed_by_public_key(claims: dict[str, Any]) -> str:
    """A token signed with HMAC, with the provider's public key as the secret."""
    signed_part = f"{_encoded({'alg': 'HS256', 'kid': 'one'})}.{_encoded(claims)}"
    digest = hmac.digest(KEY.as_pem(private=False), signed_part.encode(), "sha256")
    return f"{signed_part}.{_base64(digest)}"


def signed(claims: dict[str, Any], key: ECKey = KEY) -> str:
    """A token that the provider signs."""
    return jwt.encode({"alg": "ES256", "kid": "one"}, claims, key)


def _encoded(value: dict[str, Any]) -> str:
    return _base64(json.dumps(value).encode())


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


@dataclass
class StandInProvider:
    """The provider.

    Attributes:
        url: its issuer.
        person: claims of the person who signs in.
        claims: changes of those claims; None removes one.
        metadata: changes of the discovery, likewise.
        sign: makes the ID token.
        replies: replies in place of its own, by path.
        asked: paths of the requests that it got.
    """

    url: str = ""
    person: dict[str, Any] = field(default_factory=lambda: dict(ALICE))
    claims: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    sign: Callable[[dict[str, Any]], str] = signed
    replies: dict[str, Reply] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def authorize(self, url: str) -> dict[str, str]:
        """Sign in the person whose browser was redirected here; return the parameters of the redirect back."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert url.startswith(f"{self.url}/authorize?")
        assert (query["client_id"], query["response_type"]) == (CLIENT, "code")
        assert (query["code_challenge_method"], query["scope"].split()[0]) == ("S256", "openid")
        code = secrets.token_urlsafe(16)
        self._codes[code] = query
        return {"code": code, "state": query["state"]}

    def discovery(self) -> dict[str, Any]:
        """The discovery document."""
        found = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "end_session_endpoint": f"{self.url}/end?keep=1",
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
        } | self.metadata
        return {name: value for name, value in found.items() if value is not None}

    def token(self, body: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """The response to a code, which can be used once."""
        query = self._codes.pop(body.get("code", ""), None)
        digest = hashlib.sha256(body.get("code_verifier", "").encode()).digest()
        if query is None or _base64(digest) != query["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        if (body["redirect_uri"], body["client_secret"]) != (query["redirect_uri"], SECRET):
            return 401, {"error": "invalid_client"}
        now = round(time.time())
        claims = {"iss": self.url, "aud": CLIENT, "iat": now, "exp": now + 60, "nonce": query["nonce"]}
        claims = {name: value for name, value in {**claims, **self.person, **self.claims}.items() if value is not None}
        return 200, {"token_type": "Bearer", "access_token": "unused", "id_token": self.sign(claims)}

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Reply to a request."""
        path = urlsplit(handler.path).path
        self.asked.append(path)
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0)).decode()
        fields = {name: values[0] for name, values in parse_qs(body).items()}
        if path in self.replies:
            self.replies[path](handler)
        elif path == "/token":
            send(handler, *self.token(fields))
        else:
            keys = {"keys": [KEY.as_dict(private=False)]}
            found = {"/.well-known/openid-configuration": self.discovery(), "/keys": keys}
            send(handler, 200 if path in found else 404, found.get(path, {}))


def send(handler: BaseHTTPRequestHandler, status: int, value: Any, **headers: str) -> None:
    """Send a response: JSON, or raw bytes."""
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    handler.send_response(status)
    for name, header in {"Content-Length": str(len(content)), **headers}.items():
        handler.send_header(name, header)
    handler.end_headers()
    handler.wfile.write(content)


@contextmanager
def stand_in_provider(tls: ssl.SSLContext | None = None) -> Iterator[StandInProvider]:
    """A provider that runs until the block ends, with HTTPS if it has a certificate."""
    provider = StandInProvider()

    class ProviderHandler(BaseHTTPRequestHandler):
        def _respond(self) -> None:
            provider.answer(self)

        do_GET = do_POST = _respond

        def handle(self) -> None:
            with suppress(ssl.SSLError, ConnectionError):  # a client that does not trust the certificate
                super().handle()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), ProviderHandler) as server:
        if tls:
            # The handshake is left to the thread of the connection: one that fails must not end the loop.
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        provider.url = f"http{'s' * bool(tls)}://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield provider
        finally:
            server.shutdown()
