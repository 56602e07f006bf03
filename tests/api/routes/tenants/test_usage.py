"""/v1/usage: which usage a caller sees, and the query's filters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import IO, Any

import pytest
from anyio import CapacityLimiter
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import ValidationError

from api.data_view import tenant_turns
from api.routes.tenants import usage as usage_routes
from api.settings import ApiSettings
from shared.database.callers.key_records import Key
from shared.database.tenancy import KeyLimits, Role
from shared.database.usage import Amount, UsageAccount

TODAY = datetime.now(UTC).date()
Get = Callable[..., tuple[int, Any]]


@pytest.fixture
def keys(app: FastAPI) -> dict[str, tuple[Key, str]]:
    """Keys of two tenants, by name, each with its secret, and a request of each by another model."""
    create = app.state.services.keys.create
    keys = {
        "operator": create("operator"),
        "boss": create("boss", "acme", Role.ADMIN),
        "viewer": create("viewer", "acme", Role.VIEWER),
        "trainer": create("trainer", "acme", Role.TRAINER),
    }
    app.state.services.usage.add(
        {
            UsageAccount(TODAY.isoformat(), key.id, name, key.tenant): Amount(1, 10, 4, 2)
            for name, (key, _) in keys.items()
        }
    )
    return keys


@pytest.fixture
def get_usage(anonymous: TestClient, keys: dict[str, tuple[Key, str]]) -> Get:
    """Requests the usage with a key; status, and the lines or the error."""

    def get(name: str, tenant: str | None = None, **query: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {keys[name][1]}", **({"X-Mens-Tenant": tenant} if tenant else {})}
        response = anonymous.get("/v1/usage", params=query, headers=headers)
        return response.status_code, response.json().get("data", response.json().get("error"))

    return get


def names(result: tuple[int, Any]) -> list[str]:
    status, lines = result
    assert status == 200, lines
    return sorted(line["key_name"] for line in lines)


def test_admin_sees_the_tenants_usage_and_others_their_own(get_usage: Get) -> None:
    assert names(get_usage("viewer")) == ["viewer"]
    assert names(get_usage("trainer")) == ["trainer"]
    assert names(get_usage("boss")) == ["boss", "trainer", "viewer"]
    assert names(get_usage("operator")) == ["operator"]
    assert names(get_usage("operator", tenant="acme")) == ["boss", "trainer", "viewer"]
    assert get_usage("boss", tenant="shared")[1]["code"] == "TENANT_FORBIDDEN"


def test_usage_of_one_key(get_usage: Get, keys: dict[str, tuple[Key, str]]) -> None:
    viewer, operator = keys["viewer"][0].id, keys["operator"][0].id
    assert names(get_usage("boss", key_id=viewer)) == ["viewer"]
    assert names(get_usage("viewer", key_id=viewer)) == ["viewer"]
    for other in (keys["boss"][0].id, operator, "key-nobody"):  # the same whether there is such a key or not
        status, error = get_usage("viewer", key_id=other)
        assert (status, error["code"]) == (403, "ROLE_INSUFFICIENT")
    for other in (operator, "key-nobody", ""):  # another tenant's key looks like one that does not exist
        status, error = get_usage("boss", key_id=other)
        assert (status, error["code"], error["param"]) == (404, "KEY_NOT_FOUND", "key_id")


def test_usage_of_a_revoked_key_is_kept(get_usage: Get, app: FastAPI, keys: dict[str, tuple[Key, str]]) -> None:
    viewer = keys["viewer"][0].id
    app.state.services.keys.revoke(viewer)
    assert names(get_usage("boss", key_id=viewer)) == ["viewer"]


def test_viewer_cannot_see_others_by_grouping(get_usage: Get) -> None:
    assert [line["requests"] for line in get_usage("viewer", group_by="")[1]] == [1]
    assert [line["model"] for line in get_usage("viewer", group_by="model")[1]] == ["viewer"]
    assert get_usage("viewer", model="boss") == (200, [])


def test_line_has_tokens_of_a_day_key_and_model(get_usage: Get, keys: dict[str, tuple[Key, str]]) -> None:
    key = keys["viewer"][0]
    [line] = get_usage("viewer")[1]
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


def test_days_are_filtered(get_usage: Get, app: FastAPI, keys: dict[str, tuple[Key, str]]) -> None:
    key = keys["viewer"][0]
    for ago in (29, 30):
        day = (TODAY - timedelta(days=ago)).isoformat()
        app.state.services.usage.add({UsageAccount(day, key.id, "old", "acme"): Amount(ago)})
    assert {line["requests"] for line in get_usage("viewer", to=TODAY.isoformat())[1]} == {1, 29}
    before = (TODAY - timedelta(days=30)).isoformat()
    assert [line["requests"] for line in get_usage("viewer", **{"from": before, "to": before})[1]] == [30]
    assert len(get_usage("viewer", **{"from": before})[1]) == 3
    assert get_usage("viewer", **{"from": (TODAY + timedelta(days=1)).isoformat()}) == (200, [])


def test_usage_is_listed_in_pages(anonymous: TestClient, get_usage: Get, keys: dict[str, tuple[Key, str]]) -> None:
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
def test_invalid_queries_are_refused(get_usage: Get, query: dict[str, Any], param: str | None) -> None:
    status, body = get_usage("viewer", **query)
    if param is None:
        assert (status, body) == (200, [])
    else:
        assert (status, body["code"], body["param"]) == (400 if status == 400 else 422, "REQUEST_INVALID", param)


def test_costs_are_a_tenants_own(anonymous: TestClient, keys: dict[str, tuple[Key, str]]) -> None:
    def ask(name: str, accept: str = "*/*", **query: Any) -> Any:
        headers = {"Authorization": f"Bearer {keys[name][1]}", "Accept": accept}
        return anonymous.get("/v1/usage/costs", params=query, headers=headers)

    def shown(name: str, **query: Any) -> list[str]:
        return sorted(line["key_name"] for line in ask(name, **query).json()["data"])

    assert shown("viewer") == ["viewer"]
    assert shown("boss") == ["boss", "trainer", "viewer"]
    assert shown("operator") == ["operator"]
    assert shown("operator", group_by="tenant,key") == ["boss", "operator", "trainer", "viewer"]
    for name in ("viewer", "boss"):
        assert ask(name, group_by="tenant").status_code == 403
    [line] = ask("viewer").json()["data"]
    assert (line["requests"], line["prompt_tokens"], line["gpu_minutes"]) == (1, 10, 0.0)
    assert (line["gpu_cost"], line["token_cost"], line["currency"]) == (None, None, None)
    [line] = ask("viewer", group_by="model,job").json()["data"]
    assert (line["model"], line["job_id"], line["base"]) == ("viewer", "", None)
    refused = ask("viewer", group_by="hour"), ask("viewer", key="x"), ask("viewer", after="a")
    assert [answer.status_code for answer in refused] == [400, 422, 400]
    etag = ask("viewer").headers["etag"]
    headers = {"Authorization": f"Bearer {keys['viewer'][1]}", "If-None-Match": etag}
    assert anonymous.get("/v1/usage/costs", headers=headers).status_code == 304


def test_costs_as_a_table_calculate_nothing(anonymous: TestClient, app: FastAPI) -> None:
    """A spreadsheet would run a name like this."""
    key, secret = app.state.services.keys.create('=HYPERLINK("x")', "acme")
    app.state.services.usage.add({UsageAccount(TODAY.isoformat(), key.id, "tiny", "acme"): Amount(1, 10, 4, 2)})
    headers = {"Authorization": f"Bearer {secret}", "Accept": "text/csv"}
    answer = anonymous.get("/v1/usage/costs", params={"group_by": "key,base,job", "limit": 1}, headers=headers)
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.text == (
        "key_name,base,job_id,attempts,gpu_minutes,requests,prompt_tokens,cached_tokens,completion_tokens,gpu_cost,token_cost,currency\n"
        '"\'=HYPERLINK(""x"")",tiny,,0,0.0,1,10,4,2,,,\n'
    )


def test_table_of_costs_leaves_turn_and_database_before_it_is_sent(
    anonymous: TestClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow client reads from an unnamed file; only a part of the table is in memory."""
    services = app.state.services
    key, secret = services.keys.create("reader", "acme")
    services.usage.add(
        {UsageAccount(TODAY.isoformat(), key.id, f"base-{n:03}", "acme"): Amount(1, 1, 0, 1) for n in range(40)}
    )
    monkeypatch.setattr(usage_routes, "PART_BYTES", 100)
    held: list[tuple[int, int]] = []
    parts = usage_routes._parts

    def watched(table: IO[bytes]) -> Iterator[bytes]:
        for part in parts(table):
            held.append((services.database.engine.pool.checkedout(), len(part)))
            yield part

    monkeypatch.setattr(usage_routes, "_parts", watched)
    headers = {"Authorization": f"Bearer {secret}", "Accept": "text/csv"}
    answer = anonymous.get("/v1/usage/costs", params={"group_by": "base"}, headers=headers)
    assert [line.split(",")[0] for line in answer.text.splitlines()] == ["base", *(f"base-{n:03}" for n in range(40))]
    assert int(answer.headers["content-length"]) == len(answer.content) > 1_000
    assert len(held) > 10
    assert max(held) <= (0, 100)
    assert services.curve_turns._all.borrowed_tokens == 0
    monkeypatch.setattr(usage_routes, "MOST_CSV_LINES", 39)
    refused = anonymous.get("/v1/usage/costs", params={"group_by": "base"}, headers=headers)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "from")


def test_costs_wait_for_their_turn(app: FastAPI, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_turns, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(app.state.services.curve_turns, "_all", CapacityLimiter(0))
    for accept in ("application/json", "text/csv"):
        refused = client.get("/v1/usage/costs", headers={"Accept": accept})
        assert (refused.status_code, refused.json()["error"]["mens"]["code"]) == (429, "CONCURRENCY_LIMITED")


@pytest.mark.parametrize(
    "prices",
    [
        {"price_gpu_hour": 2},
        {"price_currency": "EUR"},
        {"price_currency": "EUR", "price_million_prompt_tokens": 1},
        {"price_currency": "euro", "price_gpu_hour": 2},
        {"price_currency": "EUR", "price_gpu_hour": -1},
    ],
)
def test_incomplete_prices_are_refused(prices: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ApiSettings(**prices)
    assert ApiSettings(price_currency="EUR", price_gpu_hour=2).prices.gpu_hour == 2


def test_rate_limit_is_a_429_for_requests_to_models_only(anonymous: TestClient, app: FastAPI) -> None:
    """The whole way of a 429; its replica does not exist, and gets no request."""
    _, secret = app.state.services.keys.create("ci", limits=KeyLimits(requests_per_minute=1))
    headers = {"Authorization": f"Bearer {secret}"}
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "?"}]}
    first = anonymous.post("/v1/chat/completions", json=chat, headers=headers)
    assert (first.status_code, first.json()["error"]["mens"]["code"]) == (503, "SERVING_UNAVAILABLE")
    second = anonymous.post("/v1/chat/completions", json=chat, headers=headers)
    assert (second.status_code, second.json()["error"]["mens"]["code"]) == (429, "RATE_LIMITED")
    assert second.json()["error"]["type"] == "requests"
    assert 1 <= int(second.headers["retry-after"]) <= 60
    assert second.headers["x-ratelimit-limit-requests"] == "1"
    assert anonymous.get("/v1/models", headers=headers).status_code == 200
