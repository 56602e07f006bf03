"""/v1/usage: who may see what of it, and how it is asked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.keys import Key
from shared.tenancy import KeyLimits, Role
from shared.usage import Account, Amount

TODAY = datetime.now(UTC).date()
As = Callable[..., tuple[int, Any]]


@pytest.fixture
def keys(app: FastAPI) -> dict[str, tuple[Key, str]]:
    """Keys of two tenants, by name, each with its secret, and a request of each by another model."""
    create = app.state.services.keys.create
    made = {
        "operator": create("operator"),
        "boss": create("boss", "acme", Role.ADMIN),
        "viewer": create("viewer", "acme", Role.VIEWER),
        "trainer": create("trainer", "acme", Role.TRAINER),
    }
    app.state.services.usage.add(
        {Account(TODAY.isoformat(), key.id, name, key.tenant): Amount(1, 10, 4, 2) for name, (key, _) in made.items()}
    )
    return made


@pytest.fixture
def ask(anonymous: TestClient, keys: dict[str, tuple[Key, str]]) -> As:
    """Asks as somebody; status, and the lines or the error."""

    def ask_as(name: str, tenant: str | None = None, **query: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {keys[name][1]}", **({"X-Mens-Tenant": tenant} if tenant else {})}
        answer = anonymous.get("/v1/usage", params=query, headers=headers)
        return answer.status_code, answer.json().get("data", answer.json().get("error"))

    return ask_as


def names(answer: tuple[int, Any]) -> list[str]:
    status, lines = answer
    assert status == 200, lines
    return sorted(line["key_name"] for line in lines)


def test_who_sees_whose(ask: As) -> None:
    assert names(ask("viewer")) == ["viewer"]
    assert names(ask("trainer")) == ["trainer"]
    assert names(ask("boss")) == ["boss", "trainer", "viewer"]
    assert names(ask("operator")) == ["operator"]
    assert names(ask("operator", tenant="acme")) == ["boss", "trainer", "viewer"]
    assert ask("boss", tenant="shared")[1]["code"] == "TENANT_FORBIDDEN"


def test_one_key(ask: As, keys: dict[str, tuple[Key, str]]) -> None:
    viewer, operator = keys["viewer"][0].id, keys["operator"][0].id
    assert names(ask("boss", key_id=viewer)) == ["viewer"]
    assert names(ask("viewer", key_id=viewer)) == ["viewer"]
    for other in (keys["boss"][0].id, operator, "key-nobody"):  # whether there is such a key, it does not tell
        status, error = ask("viewer", key_id=other)
        assert (status, error["code"]) == (403, "ROLE_INSUFFICIENT")
    for other in (operator, "key-nobody", ""):  # another tenant's, as if it did not exist
        status, error = ask("boss", key_id=other)
        assert (status, error["code"], error["param"]) == (404, "KEY_NOT_FOUND", "key_id")


def test_a_revoked_key_s_usage_remains(ask: As, app: FastAPI, keys: dict[str, tuple[Key, str]]) -> None:
    viewer = keys["viewer"][0].id
    app.state.services.keys.revoke(viewer)
    assert names(ask("boss", key_id=viewer)) == ["viewer"]


def test_a_viewer_cannot_see_others_by_grouping(ask: As) -> None:
    assert [line["requests"] for line in ask("viewer", group_by="")[1]] == [1]
    assert [line["model"] for line in ask("viewer", group_by="model")[1]] == ["viewer"]
    assert ask("viewer", model="boss") == (200, [])


def test_a_line(ask: As, keys: dict[str, tuple[Key, str]]) -> None:
    key = keys["viewer"][0]
    [line] = ask("viewer")[1]
    assert line == {
        "id": f"{TODAY},{key.id},viewer",
        "day": TODAY.isoformat(),
        "key_id": key.id,
        "key_name": "viewer",
        "model": "viewer",
        "requests": 1,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 2,
    }


def test_days(ask: As, app: FastAPI, keys: dict[str, tuple[Key, str]]) -> None:
    key = keys["viewer"][0]
    for ago in (29, 30):
        day = (TODAY - timedelta(days=ago)).isoformat()
        app.state.services.usage.add({Account(day, key.id, "old", "acme"): Amount(ago)})
    assert {line["requests"] for line in ask("viewer", to=TODAY.isoformat())[1]} == {1, 29}
    before = (TODAY - timedelta(days=30)).isoformat()
    assert [line["requests"] for line in ask("viewer", **{"from": before, "to": before})[1]] == [30]
    assert len(ask("viewer", **{"from": before})[1]) == 3
    assert ask("viewer", **{"from": (TODAY + timedelta(days=1)).isoformat()}) == (200, [])


def test_pages(anonymous: TestClient, ask: As, keys: dict[str, tuple[Key, str]]) -> None:
    headers = {"Authorization": f"Bearer {keys['boss'][1]}"}
    first = anonymous.get("/v1/usage", params={"limit": 2}, headers=headers).json()
    assert (len(first["data"]), first["has_more"]) == (2, True)
    rest = anonymous.get("/v1/usage", params={"limit": 2, "after": first["data"][-1]["id"]}, headers=headers).json()
    assert (len(rest["data"]), rest["has_more"]) == (1, False)
    assert sorted(line["key_name"] for line in first["data"] + rest["data"]) == ["boss", "trainer", "viewer"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"from": "2026-11-02", "to": "2026-11-01"}, "from"),
        ({"from": "0001-01-01", "to": "0001-01-01"}, None),
        ({"to": "0001-01-01"}, None),
        ({"from": "yesterday"}, "from"),
        ({"group_by": "day,hour"}, "group_by"),
        ({"after": "2026-11-01"}, "after"),
        ({"after": "a\x00,b,c"}, "after"),
        ({"key_id": "\x00"}, "key_id"),
        ({"limit": 0}, "limit"),
    ],
)
def test_what_cannot_be_asked(ask: As, query: dict[str, Any], param: str | None) -> None:
    status, answer = ask("viewer", **query)
    if param is None:
        assert (status, answer) == (200, [])
    else:
        assert (status, answer["code"], answer["param"]) == (400 if status == 400 else 422, "REQUEST_INVALID", param)


def test_a_key_with_a_limit_is_refused_with_429_and_only_where_models_are_asked(
    anonymous: TestClient, app: FastAPI
) -> None:
    """The whole way of a 429; its replica does not exist, and is never asked."""
    _, secret = app.state.services.keys.create("ci", limits=KeyLimits(requests_per_minute=1))
    headers = {"Authorization": f"Bearer {secret}"}
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "?"}]}
    first = anonymous.post("/v1/chat/completions", json=ask, headers=headers)
    assert (first.status_code, first.json()["error"]["code"]) == (503, "SERVING_UNAVAILABLE")
    second = anonymous.post("/v1/chat/completions", json=ask, headers=headers)
    assert (second.status_code, second.json()["error"]["code"]) == (429, "RATE_LIMITED")
    assert second.json()["error"]["type"] == "rate_limit_error"
    assert 1 <= int(second.headers["retry-after"]) <= 60
    assert second.headers["x-ratelimit-limit-requests"] == "1"
    assert anonymous.get("/v1/models", headers=headers).status_code == 200
