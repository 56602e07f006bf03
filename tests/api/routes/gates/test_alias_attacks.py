"""A worse adapter cannot take over an alias through any route of the API, in one call or several; a better one can in
one call.

`tests/shared/database/names/test_move_evidence.py` tests the rule with all its cases on both databases. This module
tests the routes with a trainer's key, and that no other route moves an alias.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from shared.database.leases import Leases
from shared.database.names.foreign_names import ForeignNames
from shared.database.tenancy import SHARED, Role
from tests.support.asgi_server import serve
from tests.support.builders import at_once, claimed, new_adapter
from tests.support.gate_rows import LAX, govern, receipt, store
from tests.support.tiers import TIERS

pytestmark = pytest.mark.network

ROOT = Path(__file__).parents[4]
ALIAS, NAME, TOY = "/v1/aliases/prod", "/v1/names/gpt-4o", "/v1/aliases/toy"
GOOD, WORSE, BETTER = "good@1", "worse@1", "better@1"
REFUSED = {"GATE_FAILED", "GATE_MISSING", "GATE_STALE", "ROLE_INSUFFICIENT", "ALIAS_VERSION_NOT_FOUND"}
Call = tuple[str, str, dict[str, Any] | None]

ATTACKS: dict[str, list[Call]] = {
    "a move": [("PUT", ALIAS, {"adapter": WORSE})],
    "a split": [("PUT", ALIAS, {"targets": [{"adapter": GOOD, "weight": 99}, {"adapter": WORSE, "weight": 1}]})],
    "a split of which it has all but nothing, then more of it": [
        ("PUT", ALIAS, {"targets": [{"adapter": GOOD, "weight": 1000}, {"adapter": WORSE, "weight": 1}]}),
        ("PUT", ALIAS, {"adapter": WORSE}),
    ],
    "a shadow that is made the target": [
        ("PUT", ALIAS, {"adapter": GOOD, "shadow": {"adapter": WORSE, "share": 1.0}}),
        ("POST", f"{ALIAS}/rollback", {}),
        ("POST", f"{ALIAS}/rollback", {}),
        ("PUT", ALIAS, {"adapter": WORSE}),
    ],
    "an override without being an admin": [("PUT", ALIAS, {"adapter": WORSE, "override": True, "reason": "now"})],
    "a laxer policy with the move": [("PUT", ALIAS, {"adapter": WORSE, "policy": "lax"})],
    "a laxer policy before the move": [
        ("PUT", "/v1/policy_assignments/alias:prod", {"policy": "lax"}),
        ("PUT", "/v1/policy_assignments/tenant", {"policy": "lax"}),
        ("PUT", ALIAS, {"adapter": WORSE}),
    ],
    "another policy of the same name": [
        ("POST", "/v1/policies", {"name": "strict", "source": LAX}),
        ("PUT", ALIAS, {"adapter": WORSE}),
    ],
    "no policy": [("DELETE", "/v1/policy_assignments/alias:prod", None), ("PUT", ALIAS, {"adapter": WORSE})],
    "a new alias of the name": [("DELETE", ALIAS, None), ("PUT", ALIAS, {"adapter": WORSE}), ("POST", f"{ALIAS}/rollback", {})],
    "a foreign name in its place": [
        ("DELETE", ALIAS, None),
        ("PUT", "/v1/names/prod", {"adapter": WORSE}),
        ("PUT", "/v1/names/prod", {"alias": "toy"}),
        ("PUT", TOY, {"adapter": WORSE}),
        ("POST", f"{ALIAS}/rollback", {}),
    ],
    "a foreign name that follows it": [("PUT", NAME, {"adapter": WORSE})],
    "a foreign name by way of the adapter that answers": [("PUT", NAME, {"adapter": GOOD}), ("PUT", NAME, {"adapter": WORSE})],
    "a foreign name by way of another alias": [("PUT", NAME, {"alias": "toy"}), ("PUT", TOY, {"adapter": WORSE})],
    "a foreign name that is made anew": [("DELETE", NAME, None), ("PUT", NAME, {"adapter": WORSE})],
    "an alias in a foreign name's place": [
        ("PUT", "/v1/aliases/gpt-4o", {"adapter": GOOD}),
        ("PUT", "/v1/aliases/gpt-4o", {"adapter": WORSE}),
    ],
    "a version that it never was": [("POST", f"{ALIAS}/rollback", {"to_version": 9})],
}  # fmt: skip

MOVERS = {
    "api/routes/aliases.py": {"put_alias", "roll_back", "delete_alias"},
    "api/routes/names.py": {"put_name", "delete_name"},
    "shared/database/leases.py": {"finish"},
    "shared/database/names/publication.py": {"publish_to_alias"},
}
"""Where a name is moved, outside the modules that say how; the attacks are over these."""


OWN_PLACES = ("shared/database/names/aliases.py", "shared/database/names/foreign_names.py")


@pytest.fixture
def trainer(app: FastAPI) -> Iterator[httpx.Client]:
    """A trainer of an installation with a governed alias, a foreign name that follows it, and an alias that nothing governs.

    The worse adapter has a receipt that failed.
    """
    services = app.state.services
    database, leases = services.database, Leases(services.database, 60)
    made = [new_adapter(name, final=False) for name in (GOOD, WORSE, BETTER)]
    leases.finish(claimed(services.jobs, leases), {}, adapters=made)
    store(database, "lax", LAX)
    _, secret = services.keys.create("tom", SHARED, Role.TRAINER)
    for url in serve(app, "on"):
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=30) as client:
            for path, body in ((ALIAS, {"adapter": GOOD}), (TOY, {"adapter": GOOD}), (NAME, {"alias": "prod"})):
                assert client.put(path, json=body).status_code == 200
            govern(database, "alias:prod")
            receipt(database, WORSE, GOOD, passed=False)
            yield client


def answering(app: FastAPI) -> dict[str, set[str]]:
    """The adapters that may answer a request, by the names of the alias and of what follows it; a name that is gone has none."""
    services, found = app.state.services, {}
    names = ForeignNames(services.database)
    for name in ("prod", "gpt-4o"):
        alias = services.aliases.find(name)
        routing = alias or getattr(names.resolve(name), "routing", None)
        found[name] = {target.adapter for target in routing.targets} if routing else set()
    return found


def codes(client: httpx.Client, calls: list[Call]) -> list[str]:
    """Return the error code of each call, empty for one that succeeded."""
    responses = [
        client.request(method, path, **({} if body is None else {"json": body})) for method, path, body in calls
    ]
    return [answer.json()["error"]["mens"]["code"] if answer.is_error else "" for answer in responses]


@pytest.mark.parametrize("attack", ATTACKS)
def test_worse_adapter_takes_the_alias_by_no_route(app: FastAPI, trainer: httpx.Client, attack: str) -> None:
    found = codes(trainer, ATTACKS[attack])
    assert {*found} <= REFUSED | {""}, "an attack that is refused for its form is none"
    assert REFUSED & {*found}
    assert [name for name, adapters in answering(app).items() if WORSE in adapters] == []


def test_worse_adapter_takes_it_by_no_job(app: FastAPI, trainer: httpx.Client) -> None:
    services = app.state.services
    for name in ("prod", "gpt-4o"):
        leases = Leases(services.database, 60)
        lease = claimed(services.jobs, leases)
        job = leases.finish(lease, {}, adapters=[new_adapter(f"{name}-job@1")], alias=name)
        found = trainer.get(f"/v1/jobs/{job.id}").json()
        assert (found["state"], found["result"]["alias"]["error"]["code"]) == ("succeeded", "GATE_MISSING")
    assert answering(app) == {"prod": {GOOD}, "gpt-4o": {GOOD}}


def test_receipt_that_has_expired_moves_nothing(app: FastAPI, trainer: httpx.Client) -> None:
    database = app.state.services.database
    with database.read() as session:
        ended = database.now(session) - timedelta(seconds=1)
    receipt(database, BETTER, GOOD, valid_until=ended)
    assert codes(trainer, [("PUT", ALIAS, {"adapter": BETTER})]) == ["GATE_STALE"]
    assert answering(app)["prod"] == {GOOD}


def test_better_adapter_takes_it_in_one_call_and_worse_one_in_no_race(app: FastAPI, trainer: httpx.Client) -> None:
    """Make six calls at once: two with a receipt against the current adapter, one of which becomes stale, and four
    without.
    """
    database = app.state.services.database
    leases = Leases(database, 60)
    leases.finish(claimed(app.state.services.jobs, leases), {}, adapters=[new_adapter("other@1", final=False)])
    for adapter in (BETTER, "other@1"):
        receipt(database, adapter, GOOD)
    adapters = [BETTER, WORSE, "other@1", WORSE, WORSE, WORSE]
    found = at_once(6, lambda index: codes(trainer, [("PUT", ALIAS, {"adapter": adapters[index]})])[0])
    [taken] = answering(app)["prod"]
    assert taken in (BETTER, "other@1")
    assert sorted(found[index] for index in (0, 2)) == ["", "GATE_STALE"]
    assert {found[index] for index in (1, 3, 4, 5)} <= {"GATE_FAILED", "GATE_STALE"}
    assert answering(app)["gpt-4o"] == {taken}, "what follows the alias follows it"
    moves = trainer.get(f"{ALIAS}/history").json()["data"]
    assert [move["to"]["targets"][0]["adapter"] for move in moves] == [taken, GOOD]


def test_nothing_else_moves_a_name() -> None:
    verbs = {"set", "rollback", "delete"}
    found: dict[str, set[str]] = {}
    for path in (path for tier in TIERS for path in (ROOT / tier).rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        if place in OWN_PLACES or place.startswith("api/migrations/"):
            continue
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef) and any(moves(call, verbs) for call in ast.walk(function)):
                found.setdefault(place, set()).add(function.name)
    assert found == MOVERS


def moves(call: ast.AST, verbs: set[str]) -> bool:
    """Return whether a node of the source moves a name, by a method of `Aliases` or `ForeignNames` or by their parts."""
    if not isinstance(call, ast.Call):
        return False
    if isinstance(call.func, ast.Name):
        return call.func.id in {"move", "move_alias", "publish_to_alias"}
    owner = getattr(call.func, "value", None)
    called = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    return isinstance(call.func, ast.Attribute) and call.func.attr in verbs and called in ("aliases", "names")
