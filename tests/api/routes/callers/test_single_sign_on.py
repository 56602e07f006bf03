"""Single sign-on: signing in and out, the role from a person's groups, and false answers of a provider."""

from __future__ import annotations

import hashlib
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from api.services import make_services
from api.settings import ApiSettings, SignInRule
from api.sign_in import provider as provider_module
from shared.database.callers.sign_ins import PERSON_AGE
from shared.database.overview.audit_log import AuditEvent, AuditFilter, AuditLog
from shared.database.tenancy import Role
from tests.support.api_installation import application_of
from tests.support.doubles import FakeJobQueue
from tests.support.identity_provider import (
    ALICE,
    CLIENT,
    OTHER_KEY,
    SECRET,
    StandInProvider,
    send,
    signed,
    signed_by_public_key,
    stand_in_provider,
    unsigned,
)
from tests.support.sign_ins import CHALLENGE, TOKEN, cookie_of, signed_in_headers

BEGIN, FINISH = "/v1/sign_in/oidc", "/v1/sign_in/oidc/callback"
DISCOVERY = "/.well-known/openid-configuration"
RULES = [
    SignInRule(group="ml", tenant="acme", role=Role.VIEWER),
    SignInRule(group="ml-leads", tenant="acme", role=Role.ADMIN),
    SignInRule(group="ops", tenant="shared", role=Role.ADMIN),
]


def code_of(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


@pytest.fixture
def provider() -> Iterator[StandInProvider]:
    with stand_in_provider() as found:
        yield found


@pytest.fixture
def sso(settings: ApiSettings, provider: StandInProvider) -> ApiSettings:
    """Settings of an installation with the provider."""
    found = {"oidc_issuer": provider.url, "oidc_client_id": CLIENT, "oidc_client_secret": SECRET, "oidc_rules": RULES}
    return ApiSettings.model_validate({**settings.model_dump(), **found})


@pytest.fixture
def person(sso: ApiSettings, app: Any) -> Iterator[TestClient]:
    """A client of that installation, without a key."""
    with TestClient(application_of(make_services(sso, job_queue=FakeJobQueue()))) as client:
        yield client


def begin(client: TestClient, **headers: str) -> Any:
    return client.post(BEGIN, json={"challenge": CHALLENGE}, headers=headers)


def finish(client: TestClient, answer: dict[str, str], token: str = TOKEN, **headers: str) -> Any:
    response = client.post(FINISH, json=answer, headers={"X-Mens-Sign-In": token, **headers})
    client.cookies.clear()  # the tests send it themselves
    return response


def sign_in(client: TestClient, provider: StandInProvider) -> Any:
    """The response to a whole way through the provider."""
    return finish(client, provider.authorize(begin(client).json()["authorization_url"]))


def events(client: TestClient) -> list[AuditEvent]:
    return list(AuditLog(client.app.state.services.database).list(AuditFilter()))  # type: ignore[attr-defined]


# -- in and out ----------------------------------------------------------------------------------------------------------


def test_person_signs_in_with_both_halves_and_out_at_the_provider_too(
    person: TestClient, provider: StandInProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert person.get("/v1/sign_in").json()["ways"] == ["key", "code", "oidc"]
    made = sign_in(person, provider)
    assert made.status_code == 201
    cookie = cookie_of(made)
    assert (cookie["samesite"], bool(cookie["httponly"]), bool(cookie["secure"])) == ("strict", True, True)
    page = signed_in_headers(made)
    told = person.get("/v1/me", headers=page).json()
    assert (told["name"], told["kind"], told["tenant"], told["role"]) == (
        "alice@acme.example",
        "person",
        "acme",
        "viewer",
    )
    for missing in ("Cookie", "X-Mens-Sign-In"):
        half = {name: value for name, value in page.items() if name != missing}
        assert code_of(person.get("/v1/me", headers=half)) == (401, "KEY_MISSING")
    assert code_of(person.get("/v1/me", headers=page | {"Sec-Fetch-Site": "cross-site"})) == (403, "SIGN_IN_CROSS_SITE")
    # Hours later the provider's addresses are old, and it may be away: who signs out does not wait for it.
    monkeypatch.setattr(provider_module, "DISCOVERY_SECONDS", 0.0)
    asked = list(provider.asked)
    ended = person.delete("/v1/sign_ins/current", headers=page).json()
    assert provider.asked == asked
    address = urlsplit(ended["end_session_url"])
    assert ended["end_session_url"].startswith(f"{provider.url}/end?")
    expected = {"keep": ["1"], "client_id": [CLIENT], "post_logout_redirect_uri": ["https://testserver/"]}
    assert parse_qs(address.query) == expected
    assert code_of(person.get("/v1/me", headers=page)) == (401, "SIGN_IN_ENDED")


def test_nothing_is_offered_without_a_provider(anonymous: TestClient) -> None:
    assert anonymous.get("/v1/sign_in").json()["ways"] == ["key", "code"]
    assert code_of(begin(anonymous)) == (404, "SIGN_IN_PROVIDER_NOT_SET")
    assert code_of(finish(anonymous, {"state": "s", "code": "c"})) == (404, "SIGN_IN_PROVIDER_NOT_SET")


def test_only_the_console_of_this_address_begins_and_finishes(person: TestClient) -> None:
    for site in ("cross-site", "same-site", "none"):
        headers = {"Sec-Fetch-Site": site}
        assert code_of(begin(person, **headers)) == (403, "SIGN_IN_CROSS_SITE")
        assert code_of(finish(person, {"state": "s", "code": "c"}, **headers)) == (403, "SIGN_IN_CROSS_SITE")


def test_provider_sends_the_browser_to_the_consoles_own_address_only(sso: ApiSettings, app: Any) -> None:
    for public_url, host, origin, expected in (
        ("https://mens.example/", "evil.example", "https://evil.example", "https://mens.example"),
        ("", "127.0.0.1:8000", "http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("", "127.0.0.1:8000", "", "http://127.0.0.1:8000"),
    ):
        settings = sso.model_copy(update={"public_url": public_url})
        with TestClient(application_of(make_services(settings, job_queue=FakeJobQueue()))) as client:
            answer = begin(client, Host=host, **({"Origin": origin} if origin else {}))
            query = parse_qs(urlsplit(answer.json()["authorization_url"]).query)
            assert query["redirect_uri"] == [f"{expected}/console/callback"]
    refused = {"challenge": CHALLENGE, "next": "https://evil.example/"}
    with TestClient(application_of(make_services(sso, job_queue=FakeJobQueue()))) as client:
        assert code_of(client.post(BEGIN, json=refused)) == (422, "REQUEST_INVALID")
        page = client.get("/console/callback?state=s&code=c&next=https://evil.example/", follow_redirects=False)
        assert (page.status_code, "location" in page.headers) == (200, False)
        assert page.headers["referrer-policy"] == "no-referrer"


def test_sign_in_ends_after_twelve_hours_and_is_listed_and_revoked(
    person: TestClient, sso: ApiSettings, provider: StandInProvider
) -> None:
    made = sign_in(person, provider).json()
    age = _time(made["expires_at"]) - _time(made["created_at"])
    assert age == PERSON_AGE.total_seconds()
    page = signed_in_headers(sign_in(person, provider))
    boss = {"Authorization": f"Bearer {person.app.state.services.keys.create('boss', 'acme')[1]}"}  # type: ignore[attr-defined]
    listed = person.get("/v1/sign_ins", headers=boss).json()["data"]
    assert [one["key_name"] for one in listed] == ["alice@acme.example"] * 2
    assert person.get("/v1/me", headers=page).status_code == 200  # and is remembered
    with TestClient(application_of(make_services(sso, job_queue=FakeJobQueue()))) as other:
        other.delete(f"/v1/sign_ins/{listed[0]['id']}", headers=boss)
    began = time.monotonic()
    while person.get("/v1/me", headers=page).status_code == 200:
        assert time.monotonic() - began < 1.0
        time.sleep(0.02)


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_audit_log_names_the_person(person: TestClient, provider: StandInProvider) -> None:
    page = signed_in_headers(sign_in(person, provider))
    person.delete("/v1/sign_ins/current", headers=page)
    found = events(person)
    assert {event.action for event in found} == {"key.created", "sign_in.created", "sign_in.ended"}
    assert {(event.actor_kind, event.actor) for event in found} == {("person", "alice@acme.example (00u1-alice)")}
    assert len({event.actor_id for event in found}) == 1
    (created,) = (event for event in found if event.action == "key.created")
    assert created.changes["subject"]["after"] == "00u1-alice"
    assert "secret" not in repr(found)


# -- groups --------------------------------------------------------------------------------------------------------------


def test_groups_give_tenant_and_highest_role(person: TestClient, provider: StandInProvider) -> None:
    for groups, tenant, role in (
        (["ml"], "acme", "viewer"),
        (["ml-leads", "ml", "other"], "acme", "admin"),
        (["ops", "ml"], "acme", "viewer"),  # the first rule decides the tenant
        (["ops"], "shared", "admin"),
    ):
        provider.person["groups"] = groups
        told = person.get("/v1/me", headers=signed_in_headers(sign_in(person, provider))).json()
        assert (told["tenant"], told["role"]) == (tenant, role)


def test_next_sign_in_brings_new_name_role_and_tenant(person: TestClient, provider: StandInProvider) -> None:
    first = signed_in_headers(sign_in(person, provider))
    provider.person |= {"groups": ["ml-leads"], "email": "alice.smith@acme.example"}
    second = signed_in_headers(sign_in(person, provider))
    for page in (first, second):  # one person, one key
        told = person.get("/v1/me", headers=page).json()
        assert (told["name"], told["role"]) == ("alice.smith@acme.example", "admin")
    provider.person["groups"] = ["ops"]
    third = signed_in_headers(sign_in(person, provider))
    assert person.get("/v1/me", headers=third).json()["tenant"] == "shared"
    assert code_of(person.get("/v1/me", headers=first)) == (401, "SIGN_IN_ENDED")
    provider.person["groups"] = []
    assert code_of(sign_in(person, provider)) == (403, "SIGN_IN_NO_ROLE")
    assert code_of(person.get("/v1/me", headers=third)) == (401, "SIGN_IN_ENDED")


def test_name_decides_nothing(person: TestClient, provider: StandInProvider) -> None:
    keys = person.app.state.services.keys  # type: ignore[attr-defined]
    keys.create("alice@acme.example", "acme", Role.ADMIN)
    page = signed_in_headers(sign_in(person, provider))
    provider.person["sub"] = "00u2-other"
    other = signed_in_headers(sign_in(person, provider))
    names = [person.get("/v1/me", headers=each).json()["name"] for each in (page, other)]
    assert len({*names, "alice@acme.example"}) == 3
    assert all(name.startswith("alice@acme.example ") for name in names)


def test_groups_of_another_type_are_refused(person: TestClient, provider: StandInProvider) -> None:
    for groups in (None, "ml", {"ml": True}, ["ml", 5], [["ml"]], 7, True):
        provider.claims = {"groups": groups, "_claim_names": {"groups": "src1"}}
        refused = sign_in(person, provider)
        assert code_of(refused) == (403, "SIGN_IN_GROUPS_MISSING"), groups
        assert "set-cookie" not in refused.headers
        assert "MENS_OIDC_GROUPS_CLAIM" in refused.json()["error"]["mens"]["remedy"]


def test_persons_key_has_no_secret_and_its_role_is_the_providers(person: TestClient, provider: StandInProvider) -> None:
    sign_in(person, provider)
    boss = {"Authorization": f"Bearer {person.app.state.services.keys.create('boss', 'acme')[1]}"}  # type: ignore[attr-defined]
    (key,) = (one for one in person.get("/v1/keys", headers=boss).json()["data"] if one["subject"])
    path = f"/v1/keys/{key['id']}"
    assert key["subject"] == ALICE["sub"]
    assert code_of(person.post(f"{path}/rotate", headers=boss, json={})) == (409, "KEY_OF_PERSON")
    assert code_of(person.patch(path, headers=boss, json={"role": "admin"})) == (409, "KEY_OF_PERSON")
    assert person.patch(path, headers=boss, json={"requests_per_minute": 5}).status_code == 200


# -- a provider that lies ------------------------------------------------------------------------------------------------

NOW = round(time.time())


def change(**claims: Any) -> Callable[[StandInProvider], None]:
    return lambda provider: provider.claims.update(claims)


def by(sign: Callable[[dict[str, Any]], str]) -> Callable[[StandInProvider], None]:
    return lambda provider: setattr(provider, "sign", sign)


LIES: dict[str, Callable[[StandInProvider], None]] = {
    "issuer": change(iss="https://evil.example"),
    "no issuer": change(iss=None),
    "audience": change(aud="another"),
    "no audience": change(aud=None),
    "two audiences without a party": change(aud=[CLIENT, "another"]),
    "party": change(azp="another"),
    "nonce": change(nonce="of another"),
    "no nonce": change(nonce=None),
    "expired": change(exp=NOW - 3600, iat=NOW - 7200),
    "no expiry": change(exp=None),
    "expiry of a wrong type": change(exp="never"),
    "from the future": change(iat=NOW + 3600, exp=NOW + 7200),
    "not yet": change(nbf=NOW + 3600),
    "nobody": change(sub=""),
    "no subject": change(sub=None),
    "subject of a wrong type": change(sub=["alice"]),
    "long subject": change(sub="a" * 256),
    "subject in two lines": change(sub="00u1-alice\n"),
    "subject with a look-alike": change(sub="00u1-\u0430lice"),
    "alg none": by(unsigned),
    "HS256 by the public key": by(signed_by_public_key),
    "another's key": by(lambda claims: signed(claims, OTHER_KEY)),
    "changed after it was signed": by(lambda claims: _tampered(signed(claims))),
    "no token": by(lambda _: ""),
    "not a token": by(lambda _: {"sub": "alice"}),  # type: ignore[arg-type, return-value]
    "keys of a wrong type": lambda provider: provider.replies.update(
        {"/keys": lambda to: send(to, 200, {"keys": "x"})}
    ),
    "other keys": lambda provider: provider.replies.update(
        {"/keys": lambda to: send(to, 200, {"keys": [{"kty": "oct", "k": "eA"}, OTHER_KEY.as_dict(private=False), 5]})}
    ),
    "redirect of the keys": lambda provider: provider.replies.update(
        {"/keys": lambda to: send(to, 302, {}, Location=f"{provider.url}/keys2")}
    ),
    "huge token": lambda provider: provider.replies.update({"/token": lambda to: send(to, 200, b" " * (300 << 10))}),
    "list": lambda provider: provider.replies.update({"/token": lambda to: send(to, 200, [])}),
    "no JSON": lambda provider: provider.replies.update({"/token": lambda to: send(to, 200, b"<html>")}),
}


def _tampered(token: str) -> str:
    head, claims, signature = token.split(".")
    middle = len(claims) // 2
    return ".".join([head, claims[:middle] + ("A" if claims[middle] != "A" else "B") + claims[middle + 1 :], signature])


def test_every_lie_is_refused_and_leaves_no_sign_in(person: TestClient, provider: StandInProvider) -> None:
    for name, lie in LIES.items():
        provider.claims, provider.replies, provider.sign = {}, {}, signed
        lie(provider)
        refused = sign_in(person, provider)
        assert code_of(refused) == (401, "SIGN_IN_PROVIDER_INVALID"), name
        assert "set-cookie" not in refused.headers
        assert "evil" not in refused.text
    assert not events(person)
    provider.claims, provider.replies, provider.sign = {}, {}, signed
    assert sign_in(person, provider).status_code == 201


def test_discovery_that_lies_is_refused(
    person: TestClient, provider: StandInProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_module, "FAILURE_SECONDS", 0.0)
    monkeypatch.setattr(provider_module, "DISCOVERY_SECONDS", 0.0)
    lies: list[dict[str, Any]] = [{"issuer": "https://evil.example"}, {"issuer": None}]
    addresses = ("http://evil.example/authorize", "javascript:alert(1)", "https://a@evil.example/", None, 5)
    for provider.metadata in lies + [{"authorization_endpoint": address} for address in addresses]:
        assert code_of(begin(person)) == (401, "SIGN_IN_PROVIDER_INVALID"), provider.metadata
    provider.metadata = {}
    assert begin(person).status_code == 200


def test_redirect_of_the_discovery_is_not_followed(person: TestClient, provider: StandInProvider) -> None:
    provider.replies[DISCOVERY] = lambda to: send(to, 302, {}, Location=f"{provider.url}/elsewhere")
    provider.replies["/elsewhere"] = lambda to: send(to, 200, provider.discovery())
    assert code_of(begin(person)) == (401, "SIGN_IN_PROVIDER_INVALID")
    assert "/elsewhere" not in provider.asked


def test_issuer_of_the_answer_is_checked(person: TestClient, provider: StandInProvider) -> None:
    provider.metadata = {"authorization_response_iss_parameter_supported": True}
    for more, status in (({}, 401), ({"iss": "https://evil.example"}, 401), ({"iss": provider.url}, 201)):
        answer = provider.authorize(begin(person).json()["authorization_url"])
        assert finish(person, answer | more).status_code == status


# -- states and codes ----------------------------------------------------------------------------------------------------


def test_answer_counts_once_and_in_its_browser_only(person: TestClient, provider: StandInProvider) -> None:
    answer = provider.authorize(begin(person).json()["authorization_url"])
    stolen = finish(person, answer, token="u" * 43)
    assert code_of(stolen) == (401, "SIGN_IN_STATE_INVALID")
    assert "/token" not in provider.asked
    assert code_of(finish(person, answer | {"state": "guess"})) == (401, "SIGN_IN_STATE_INVALID")
    assert finish(person, answer).status_code == 201
    assert code_of(finish(person, answer)) == (401, "SIGN_IN_STATE_INVALID")
    fresh = provider.authorize(begin(person).json()["authorization_url"])
    replayed = finish(person, fresh | {"code": answer["code"]})
    assert code_of(replayed) == (401, "SIGN_IN_PROVIDER_INVALID")


def test_token_that_is_not_a_secret_is_refused(person: TestClient, provider: StandInProvider) -> None:
    """An attacker's sign-in, whose answer a victim's page hands in with what it sends when it has no token."""
    for word in ("none", "u" * 42):
        begun = person.post(BEGIN, json={"challenge": hashlib.sha256(word.encode()).hexdigest()}).json()
        planted = finish(person, provider.authorize(begun["authorization_url"]), token=word)
        assert code_of(planted) == (422, "REQUEST_INVALID")
        assert "set-cookie" not in planted.headers


def test_code_of_another_sign_in_fits_neither_its_verifier_nor_its_nonce(
    person: TestClient, provider: StandInProvider
) -> None:
    first = provider.authorize(begin(person).json()["authorization_url"])
    second = provider.authorize(begin(person).json()["authorization_url"])
    assert code_of(finish(person, {"state": first["state"], "code": second["code"]})) == (
        401,
        "SIGN_IN_PROVIDER_INVALID",
    )


def test_refusal_of_the_provider_is_reported(person: TestClient, provider: StandInProvider) -> None:
    state = provider.authorize(begin(person).json()["authorization_url"])["state"]
    refused = finish(person, {"state": state, "error": "access_denied"})
    assert code_of(refused) == (403, "SIGN_IN_REFUSED")
    assert "access_denied" in refused.json()["error"]["message"]
    assert code_of(finish(person, {"state": state, "error": "<b>"})) == (422, "REQUEST_INVALID")


def test_strangers_begin_as_often_as_they_may_guess_whatever_they_guessed(sso: ApiSettings, app: Any) -> None:
    settings = sso.model_copy(update={"failed_authentications_per_minute": 2})
    with TestClient(application_of(make_services(settings, job_queue=FakeJobQueue()))) as client:
        guess = {"Authorization": "Bearer mens-guess"}
        assert [client.get("/v1/me", headers=guess).status_code for _ in range(3)] == [401, 401, 429]
        assert [begin(client).status_code for _ in range(3)] == [200, 200, 429]


# -- a provider that is away ---------------------------------------------------------------------------------------------


def test_provider_that_is_away_is_a_retryable_error_and_keys_still_sign_in(
    person: TestClient, provider: StandInProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_module, "FAILURE_SECONDS", 0.0)
    provider.replies[DISCOVERY] = lambda to: send(to, 503, {})
    refused = begin(person)
    assert code_of(refused) == (503, "SIGN_IN_PROVIDER_UNAVAILABLE")
    assert refused.json()["error"]["mens"]["retryable"] is True
    key = person.app.state.services.keys.create("bob", "acme")[1]  # type: ignore[attr-defined]
    made = person.post("/v1/sign_ins", json={"challenge": CHALLENGE}, headers={"Authorization": f"Bearer {key}"})
    assert made.status_code == 201
    person.cookies.clear()
    provider.replies.clear()
    assert sign_in(person, provider).status_code == 201


def test_slow_provider_ends_within_its_time(
    person: TestClient, provider: StandInProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_module, "TOTAL_SECONDS", 0.2)
    answer = provider.authorize(begin(person).json()["authorization_url"])
    provider.replies["/token"] = _drip
    began = time.monotonic()
    assert code_of(finish(person, answer)) == (503, "SIGN_IN_PROVIDER_UNAVAILABLE")
    assert time.monotonic() - began < 2.0


def _drip(to: BaseHTTPRequestHandler) -> None:
    to.send_response(200)
    to.send_header("Content-Length", "1000")
    to.end_headers()
    try:
        for _ in range(100):
            to.wfile.write(b" ")
            time.sleep(0.05)
    except OSError:  # it had enough
        to.close_connection = True


def test_failure_is_remembered_for_moments(person: TestClient, provider: StandInProvider) -> None:
    provider.replies[DISCOVERY] = lambda to: send(to, 503, {})
    assert [begin(person).status_code for _ in range(3)] == [503] * 3
    assert provider.asked == [DISCOVERY]


# -- a private certificate authority -------------------------------------------------------------------------------------


def test_private_authority_counts_for_the_provider_in_place_of_the_public_ones(
    sso: ApiSettings, app: Any, tmp_path: Path
) -> None:
    authority, request, certificate, names = (tmp_path / name for name in ("ca.pem", "request", "cert.pem", "names"))
    keys = [tmp_path / name for name in ("ca.key", "cert.key")]
    names.write_text("subjectAltName=IP:127.0.0.1\n")
    curve = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    for made in (
        f"req -x509 {curve} -days 2 -subj /CN=authority -keyout {keys[0]} -out {authority}",
        f"req {curve} -subj /CN=provider -keyout {keys[1]} -out {request}",
        f"x509 -req -in {request} -CA {authority} -CAkey {keys[0]} -set_serial 2 -days 2 -extfile {names} -out {certificate}",
    ):
        subprocess.run(["openssl", *made.split()], check=True, capture_output=True)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, keys[1])
    with stand_in_provider(tls) as provider:
        for bundle in ("", str(authority), authority.read_text()):
            found = {**sso.model_dump(), "oidc_issuer": provider.url, "oidc_ca_bundle": bundle}
            services = make_services(ApiSettings.model_validate(found), job_queue=FakeJobQueue())
            with TestClient(application_of(services)) as client:
                if bundle:
                    assert sign_in(client, provider).status_code == 201
                else:
                    assert code_of(begin(client)) == (503, "SIGN_IN_PROVIDER_UNAVAILABLE")


@pytest.mark.parametrize(
    "bundle", ["/nowhere/ca.pem", "-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----", __file__]
)
def test_bundle_without_a_certificate_is_refused_at_the_start(sso: ApiSettings, bundle: str) -> None:
    with pytest.raises(ValidationError, match="MENS_OIDC_CA_BUNDLE is neither"):
        ApiSettings.model_validate({**sso.model_dump(), "oidc_ca_bundle": bundle})
