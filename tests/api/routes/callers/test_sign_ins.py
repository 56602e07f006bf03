"""Signing in: each half alone, other sites, ends, codes, other tenants, and how to sign in."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.inference import lookup_cache
from api.main import create_app
from api.services import make_services
from api.settings import ApiSettings
from api.sign_in.cookies import cookie_name
from shared.database.overview.audit_log import AuditEvent, AuditFilter, AuditLog
from shared.database.tenancy import Role
from tests.support.api_installation import application_of
from tests.support.doubles import FakeJobQueue
from tests.support.sign_ins import CHALLENGE, TOKEN, cookie_of, signed_in_headers

WITHIN_SECONDS = 5.0


def code_of(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def bearer(app: FastAPI, name: str = "alice", tenant: str = "acme", role: Role = Role.TRAINER) -> dict[str, str]:
    return {"Authorization": f"Bearer {app.state.services.keys.create(name, tenant, role)[1]}"}


def sign_in(client: TestClient, headers: dict[str, str], **more: Any) -> Any:
    answer = client.post("/v1/sign_ins", json={"challenge": CHALLENGE, **more}, headers=headers)
    client.cookies.clear()  # the tests send it themselves
    return answer


@pytest.fixture
def page(app: FastAPI, anonymous: TestClient) -> dict[str, str]:
    """Headers of the page's requests: alice is signed in."""
    return signed_in_headers(sign_in(anonymous, bearer(app)))


# -- both halves ---------------------------------------------------------------------------------------------------------


def test_both_halves_act_as_the_key(anonymous: TestClient, page: dict[str, str]) -> None:
    told = anonymous.get("/v1/me", headers=page).json()
    assert (told["name"], told["tenant"], told["role"]) == ("alice", "acme", "trainer")
    assert code_of(anonymous.get("/v1/keys", headers=page)) == (403, "ROLE_INSUFFICIENT")
    uploaded = anonymous.post(
        "/v1/files", headers=page, data={"purpose": "fine-tune"}, files={"file": ("a.jsonl", b'{"prompt": "a"}\n')}
    )
    assert uploaded.status_code == 200


def test_neither_half_opens_anything_alone(anonymous: TestClient, page: dict[str, str]) -> None:
    for missing in ("Cookie", "X-Mens-Sign-In"):
        half = {name: value for name, value in page.items() if name != missing}
        assert code_of(anonymous.get("/v1/me", headers=half)) == (401, "KEY_MISSING"), missing
        assert code_of(anonymous.post("/v1/jobs", headers=half, json={})) == (401, "KEY_MISSING"), missing


def test_halves_of_two_sign_ins_do_not_fit(app: FastAPI, anonymous: TestClient, page: dict[str, str]) -> None:
    token = "u" * 43
    challenge = hashlib.sha256(token.encode()).hexdigest()
    other = signed_in_headers(sign_in(anonymous, bearer(app, "bob"), challenge=challenge)) | {"X-Mens-Sign-In": token}
    assert anonymous.get("/v1/me", headers=other).json()["name"] == "bob"
    for header in ("Cookie", "X-Mens-Sign-In"):
        wrong = page | {header: other[header]}
        assert code_of(anonymous.get("/v1/me", headers=wrong)) == (401, "SIGN_IN_ENDED")


def test_halves_are_not_a_key(anonymous: TestClient, page: dict[str, str]) -> None:
    cookie = page["Cookie"].partition("=")[2]
    for secret in (cookie, TOKEN, cookie + TOKEN, f"{cookie} {TOKEN}", f"sign-in {cookie} {TOKEN}"):
        anonymous.get("/v1/me", headers=page)  # so that it is known
        assert code_of(anonymous.get("/v1/me", headers={"Authorization": f"Bearer {secret}"})) == (401, "KEY_INVALID")


def test_request_with_authorization_never_looks_at_the_cookie(
    app: FastAPI, anonymous: TestClient, page: dict[str, str]
) -> None:
    for wrong, code in (
        ("Bearer mens-wrong", "KEY_INVALID"),
        ("Bearer ", "KEY_MISSING"),
        ("Basic abc", "KEY_MISSING"),
        ("", "KEY_MISSING"),
    ):
        assert code_of(anonymous.get("/v1/me", headers=page | {"Authorization": wrong})) == (401, code)
    assert anonymous.get("/v1/me", headers=page | bearer(app, "bob")).json()["name"] == "bob"
    sites = page | bearer(app, "carol") | {"Sec-Fetch-Site": "cross-site"}
    assert anonymous.get("/v1/me", headers=sites).json()["name"] == "carol"


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none"])
def test_other_sites_pages_use_no_sign_in(app: FastAPI, anonymous: TestClient, page: dict[str, str], site: str) -> None:
    wrong = page | {"Sec-Fetch-Site": site}
    assert code_of(anonymous.get("/v1/jobs", headers=wrong)) == (403, "SIGN_IN_CROSS_SITE")
    # As a form or a simple request of another site would be: the browser adds the cookie, but not the token.
    del wrong["X-Mens-Sign-In"]
    assert code_of(anonymous.post("/v1/jobs", headers=wrong, json={})) == (401, "KEY_MISSING")
    assert code_of(sign_in(anonymous, bearer(app, "bob") | {"Sec-Fetch-Site": site})) == (403, "SIGN_IN_CROSS_SITE")


def test_preflight_of_another_origin_is_not_answered_as_one(anonymous: TestClient) -> None:
    asked = {
        "Origin": "http://127.0.0.1:9999",
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "x-mens-sign-in",
    }
    answer = anonymous.options("/v1/jobs", headers=asked)
    assert not [name for name in answer.headers if name.startswith("access-control-")]


# -- the cookie ----------------------------------------------------------------------------------------------------------


def test_cookie_is_for_this_host_over_https_and_not_for_scripts(app: FastAPI, anonymous: TestClient) -> None:
    answer = sign_in(anonymous, bearer(app))
    cookie = cookie_of(answer)
    assert cookie.key.startswith("__Host-mens-")
    assert len(cookie.key) == len("__Host-mens-") + 8
    assert (cookie["path"], cookie["domain"], cookie["samesite"]) == ("/", "", "strict")
    assert cookie["secure"]
    assert cookie["httponly"]
    assert cookie["max-age"] == "86400"
    assert cookie.value not in answer.text
    assert answer.json()["is_current"]


def at(settings: ApiSettings, address: str, public_url: str = "") -> Iterator[TestClient]:
    """The same installation, reached by another address."""
    services = make_services(settings.model_copy(update={"public_url": public_url}), job_queue=FakeJobQueue())
    with TestClient(application_of(services), base_url=address) as client:
        yield client


@pytest.mark.parametrize("address", ["http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000"])
def test_plain_http_on_the_own_machine(app: FastAPI, settings: ApiSettings, address: str) -> None:
    for client in at(settings, address):
        answer = sign_in(client, bearer(app) | {"Origin": address})
        cookie = cookie_of(answer)
        assert (answer.status_code, cookie["secure"], cookie["samesite"]) == (201, "", "strict")
        assert cookie["httponly"]
        assert cookie.key.startswith("mens-")
        assert client.get("/v1/me", headers=signed_in_headers(answer)).status_code == 200
        assert client.get("/v1/sign_in").json() == {"object": "sign_in.ways", "ways": ["key", "code"], "refused": None}


@pytest.mark.parametrize(
    ("address", "public_url", "origin"),
    [
        ("http://mens.lan:8000", "", "http://mens.lan:8000"),
        ("http://192.168.1.5", "", None),
        ("http://127.0.0.1.evil.example", "", None),
        ("http://127.0.0.1:8000", "http://mens.lan", None),
        ("http://127.0.0.1:8000", "", "http://mens.lan"),  # behind a proxy that replaces Host
    ],
)
def test_plain_http_elsewhere_is_refused_with_the_ways_out(
    app: FastAPI, settings: ApiSettings, address: str, public_url: str, origin: str | None
) -> None:
    headers = bearer(app) | ({"Origin": origin} if origin else {})
    for client in at(settings, address, public_url):
        answer = sign_in(client, headers)
        assert code_of(answer) == (403, "SIGN_IN_INSECURE")
        assert "set-cookie" not in answer.headers
        told = client.get("/v1/sign_in", headers=headers).json()
        assert (told["ways"], told["refused"]["code"]) == ([], "SIGN_IN_INSECURE")
        assert "ssh -L" in told["refused"]["remedy"]
        assert "MENS_PUBLIC_URL" in told["refused"]["remedy"]


def test_cookies_of_two_installations_have_two_names(app: FastAPI, settings: ApiSettings, tmp_path: Any) -> None:
    other = settings.model_copy(update={"database_url": f"sqlite:///{tmp_path / 'other.db'}"})
    assert cookie_name(settings) != cookie_name(other)
    secret = settings.model_copy(update={"database_url": "postgresql+psycopg://mens:one@db/mens"})
    rotated = settings.model_copy(update={"database_url": "postgresql+psycopg://mens:two@db/mens"})
    assert cookie_name(secret) == cookie_name(rotated)


def test_console_that_is_off_takes_no_sign_in(app: FastAPI, settings: ApiSettings, page: dict[str, str]) -> None:
    services = make_services(settings.model_copy(update={"console": False}), job_queue=FakeJobQueue())
    with TestClient(create_app(services=services)) as client:
        assert code_of(client.get("/v1/me", headers=page)) == (401, "KEY_MISSING")
        assert code_of(client.get("/v1/sign_in")) == (401, "KEY_MISSING")
        headers = bearer(app, "bob")
        assert code_of(client.get("/v1/sign_in", headers=headers)) == (404, "ROUTE_NOT_FOUND")
        assert code_of(sign_in(client, headers)) == (404, "ROUTE_NOT_FOUND")


# -- codes ---------------------------------------------------------------------------------------------------------------


def test_code_signs_in_once_without_a_key(app: FastAPI, anonymous: TestClient) -> None:
    made = anonymous.post("/v1/sign_in_codes", headers=bearer(app))
    left = datetime.fromisoformat(made.json()["expires_at"]) - datetime.now(UTC)
    assert (made.status_code, left < timedelta(seconds=61)) == (201, True)
    answer = sign_in(anonymous, {}, code=made.json()["code"])
    assert (answer.status_code, answer.json()["key_name"]) == (201, "alice")
    assert anonymous.get("/v1/me", headers=signed_in_headers(answer)).json()["name"] == "alice"
    again = sign_in(anonymous, {}, code=made.json()["code"])
    assert code_of(again) == (401, "SIGN_IN_CODE_INVALID")
    assert "set-cookie" not in again.headers


def test_who_is_signed_in_makes_no_code_and_no_further_sign_in(anonymous: TestClient, page: dict[str, str]) -> None:
    assert code_of(anonymous.post("/v1/sign_in_codes", headers=page)) == (403, "SIGN_IN_NEEDS_KEY")
    assert code_of(sign_in(anonymous, page)) == (401, "KEY_MISSING")


def test_admins_make_and_change_no_key_by_a_sign_in(app: FastAPI, anonymous: TestClient) -> None:
    """A script in an admin's page would carry it away."""
    admin = bearer(app, "root", role=Role.ADMIN)
    page = signed_in_headers(sign_in(anonymous, admin))
    key = anonymous.post("/v1/keys", headers=admin, json={"name": "ci", "role": "viewer"}).json()
    path = f"/v1/keys/{key['id']}"
    refused = (403, "SIGN_IN_NEEDS_KEY")
    assert code_of(anonymous.post("/v1/keys", headers=page, json={"name": "x", "role": "admin"})) == refused
    assert code_of(anonymous.patch(path, headers=page, json={"role": "admin"})) == refused
    assert code_of(anonymous.post(f"{path}/rotate", headers=page, json={})) == refused
    assert [one["role"] for one in anonymous.get("/v1/keys", headers=page).json()["data"]] == ["admin", "viewer"]
    assert anonymous.delete(path, headers=page).status_code == 200  # in haste, from wherever one is


def test_guesses_of_codes_and_halves_are_limited(settings: ApiSettings, app: FastAPI) -> None:
    services = make_services(
        settings.model_copy(update={"failed_authentications_per_minute": 3}), job_queue=FakeJobQueue()
    )
    with TestClient(application_of(services)) as client:
        guesses = [sign_in(client, {}, code=f"guess-{number}") for number in range(2)]
        halves = {"Cookie": cookie_of(sign_in(client, bearer(app))).OutputString().partition(";")[0]}
        guesses += [client.get("/v1/me", headers=halves | {"X-Mens-Sign-In": f"guess-{number}"}) for number in range(3)]
        codes = [code_of(guess) for guess in guesses]
        assert codes[:3] == [(401, "SIGN_IN_CODE_INVALID")] * 2 + [(401, "SIGN_IN_ENDED")]
        assert codes[3:] == [(429, "AUTHENTICATION_THROTTLED")] * 2
        assert sign_in(client, {}, code="guess").status_code == 429
        # An unknown code counts as a guess; a valid one does not.
        made = client.post("/v1/sign_in_codes", headers=bearer(app, "bob")).json()
        assert sign_in(client, {}, code=made["code"]).status_code == 201


def test_key_and_code_together_are_refused(app: FastAPI, anonymous: TestClient) -> None:
    headers = bearer(app)
    code = anonymous.post("/v1/sign_in_codes", headers=headers).json()["code"]
    assert code_of(sign_in(anonymous, headers, code=code)) == (400, "REQUEST_INVALID")
    assert code_of(sign_in(anonymous, {})) == (401, "KEY_MISSING")
    assert sign_in(anonymous, {}, code=code).status_code == 201


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"challenge": "x"},
        {"challenge": CHALLENGE.upper()},
        {"challenge": CHALLENGE, "next": "#/"},
        {"challenge": CHALLENGE, "code": ""},
    ],
)
def test_other_bodies_are_refused(anonymous: TestClient, body: dict[str, str]) -> None:
    answer = anonymous.post("/v1/sign_ins", json=body)
    assert code_of(answer) == (422, "REQUEST_INVALID")


def test_strangers_send_small_bodies_only(anonymous: TestClient) -> None:
    assert code_of(anonymous.post("/v1/sign_ins", content=b"x" * 5000)) == (413, "BODY_TOO_LARGE")
    assert code_of(anonymous.post("/v1/sign_ins", content=iter([b"x" * 3000] * 2))) == (413, "BODY_TOO_LARGE")


# -- lists and ends ------------------------------------------------------------------------------------------------------


def ids(response: Any) -> set[str]:
    return {each["id"] for each in response.json()["data"]}


def test_everyone_lists_their_own_and_admins_those_of_the_tenant(app: FastAPI, anonymous: TestClient) -> None:
    askers = {
        name: bearer(app, name, tenant, role)
        for name, tenant, role in (
            ("alice", "acme", Role.TRAINER),
            ("bob", "acme", Role.VIEWER),
            ("boss", "acme", Role.ADMIN),
            ("eve", "other", Role.ADMIN),
        )
    }
    made = {name: sign_in(anonymous, headers).json()["id"] for name, headers in askers.items()}
    seen = {name: ids(anonymous.get("/v1/sign_ins", headers=headers)) for name, headers in askers.items()}
    assert seen["alice"] == {made["alice"]}
    assert seen["bob"] == {made["bob"]}
    assert seen["boss"] == {made["alice"], made["bob"], made["boss"]}
    assert seen["eve"] == {made["eve"]}


def test_signed_in_people_see_which_is_theirs_and_end_it(
    app: FastAPI, anonymous: TestClient, page: dict[str, str]
) -> None:
    data = anonymous.get("/v1/sign_ins", headers=page).json()["data"]
    assert [each["is_current"] for each in data] == [True]
    ended = anonymous.delete("/v1/sign_ins/current", headers=page)
    assert (ended.status_code, ended.json()["id"]) == (200, data[0]["id"])
    assert (cookie_of(ended).value, cookie_of(ended)["max-age"]) == ("", "0")
    assert code_of(anonymous.get("/v1/me", headers=page)) == (401, "SIGN_IN_ENDED")
    assert code_of(anonymous.delete("/v1/sign_ins/current", headers=bearer(app, "bob"))) == (404, "SIGN_IN_NOT_FOUND")


def test_only_admins_end_those_of_others(app: FastAPI, anonymous: TestClient, page: dict[str, str]) -> None:
    (own,) = ids(anonymous.get("/v1/sign_ins", headers=page))
    for role in (Role.VIEWER, Role.TRAINER):
        headers = bearer(app, str(role), role=role)
        for id_ in (own, "signin-none"):
            assert code_of(anonymous.delete(f"/v1/sign_ins/{id_}", headers=headers)) == (403, "ROLE_INSUFFICIENT")
    stranger = bearer(app, "eve", "other", Role.ADMIN)
    assert code_of(anonymous.delete(f"/v1/sign_ins/{own}", headers=stranger)) == (404, "SIGN_IN_NOT_FOUND")
    assert anonymous.get("/v1/me", headers=page).status_code == 200
    boss = bearer(app, "boss", role=Role.ADMIN)
    assert anonymous.delete(f"/v1/sign_ins/{own}", headers=boss).status_code == 200
    assert code_of(anonymous.get("/v1/me", headers=page)) == (401, "SIGN_IN_ENDED")


def test_own_sign_in_is_ended_by_its_key_too(app: FastAPI, anonymous: TestClient) -> None:
    headers = bearer(app, role=Role.VIEWER)
    made = sign_in(anonymous, headers).json()["id"]
    ended = anonymous.delete(f"/v1/sign_ins/{made}", headers=headers)
    assert (ended.status_code, "set-cookie" in ended.headers) == (200, False)


def test_ended_elsewhere_is_refused_here_within_moments(
    app: FastAPI, anonymous: TestClient, page: dict[str, str], settings: ApiSettings
) -> None:
    assert anonymous.get("/v1/me", headers=page).status_code == 200  # and is remembered
    (own,) = ids(anonymous.get("/v1/sign_ins", headers=page))
    for other in at(settings, "https://testserver", settings.public_url):
        other.delete(f"/v1/sign_ins/{own}", headers=bearer(app, "boss", role=Role.ADMIN))
    began = time.monotonic()
    while anonymous.get("/v1/me", headers=page).status_code == 200:
        assert time.monotonic() - began < WITHIN_SECONDS
        time.sleep(0.02)


@pytest.mark.parametrize("change", ["revoke", "rotate"])
def test_sign_ins_end_with_their_key(app: FastAPI, anonymous: TestClient, page: dict[str, str], change: str) -> None:
    keys = app.state.services.keys
    assert anonymous.get("/v1/me", headers=page).status_code == 200
    (key,) = (key for key in keys.all("acme") if key.name == "alice")
    if change == "revoke":
        keys.revoke(key.id)
    else:
        keys.rotate(key.id, overlap_seconds=0)
    assert code_of(anonymous.get("/v1/me", headers=page)) == (401, "SIGN_IN_ENDED")


@pytest.mark.parametrize("hours", [8.1, 24.1])
def test_idle_and_old_sign_ins_end_in_memory_too(
    app: FastAPI, anonymous: TestClient, page: dict[str, str], hours: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert anonymous.get("/v1/me", headers=page).status_code == 200
    monkeypatch.setattr(lookup_cache, "now_seconds", lambda: time.time() + hours * 3600)
    assert code_of(anonymous.get("/v1/me", headers=page)) == (401, "SIGN_IN_ENDED")


# -- the audit log -------------------------------------------------------------------------------------------------------


def test_audit_log_names_who_signed_in_how_and_from_where(app: FastAPI, anonymous: TestClient) -> None:
    headers = bearer(app)
    code = anonymous.post("/v1/sign_in_codes", headers=headers).json()["code"]
    page = signed_in_headers(sign_in(anonymous, {}, code=code))
    anonymous.delete("/v1/sign_ins/current", headers=page)
    log: list[AuditEvent] = list(AuditLog(app.state.services.database).list(AuditFilter(tenant="acme")))
    events = {event.action: event for event in log}
    expected = {"key.created", "sign_in_code.created", "sign_in_code.used", "sign_in.created", "sign_in.ended"}
    assert events.keys() == expected
    for action in expected - {"key.created"}:
        assert (events[action].actor_kind, events[action].actor) == ("key", "alice"), action
        assert events[action].address == "testclient"
        assert not set(events[action].changes) - {"key_id"}
    assert code not in repr(log)
