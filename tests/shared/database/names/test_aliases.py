"""Aliases on both databases: every move is checked, numbered and recorded, and none is lost."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import text

from shared.database.adapters import Adapters
from shared.database.connection import Database
from shared.database.deletions import Deletions
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.names import aliases as aliases_module
from shared.database.names.aliases import Actor, Alias, Aliases, Move
from shared.database.routing import Routing, Shadow, Target
from shared.database.tenancy import SHARED
from shared.errors import Code, Conflict, InvalidRequest, MensError, NotFound
from tests.support.builders import at_once, claimed, new_adapter, snapshot
from tests.support.clock import Clock

ALICE = Actor(id="key-1", name="alice")
TO = [Routing.to(f"demo@{number}") for number in range(4)]
SPLIT = Routing(
    targets=(Target(adapter="demo@1", weight=90), Target(adapter="demo@2", weight=10)),
    shadow=Shadow(adapter="demo@3", share=0.25),
)


@pytest.fixture
def aliases(database: Database, jobs: Jobs, leases: Leases) -> Aliases:
    """Aliases, and four published adapters."""
    made = [new_adapter(f"demo@{number}", final=number == 3) for number in range(4)]
    leases.finish(claimed(jobs, leases), {}, adapters=made)
    return Aliases(database)


def code(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(MensError) as caught:
        call(*arguments, **options)
    return caught.value.code


def recorded(move: Move) -> tuple[Any, ...]:
    return move.version, move.verb, move.actor, move.actor_id, move.reason, move.before, move.after


# -- moving --------------------------------------------------------------------------------------------------------


def test_no_move_gives_an_alias_the_name_of_a_base(aliases: Aliases) -> None:
    assert code(aliases.set, "tiny", TO[1], ALICE, forbidden=frozenset(["tiny"])) == Code.NAME_INVALID
    aliases.set("helper", TO[1], ALICE)
    aliases.delete("helper", ALICE)
    assert code(aliases.rollback, "helper", ALICE, forbidden=frozenset(["helper"])) == Code.NAME_INVALID
    assert aliases.rollback("helper", ALICE).adapter_id == "demo@1"


def test_alias_is_set_and_found(aliases: Aliases, clock: Clock) -> None:
    made = aliases.set("prod", TO[1], ALICE, "the first")
    plain = (Target(adapter="demo@1", weight=100),)
    now = {"version": 1, "adapter_id": "demo@1", "moved_at": clock.now, "targets": plain}
    assert made == Alias(name="prod", tenant=SHARED, hides=None, **now)
    assert aliases.get("prod") == aliases.find("prod") == made
    aliases.set("beta", SPLIT, ALICE)
    assert [(alias.name, alias.adapter_id) for alias in aliases.all()] == [("beta", "demo@1"), ("prod", "demo@1")]
    assert (aliases.get("beta").targets, aliases.get("beta").shadow) == (SPLIT.targets, SPLIT.shadow)


def test_every_move_is_recorded_with_actor_and_reason(aliases: Aliases, clock: Clock) -> None:
    bob = Actor(id="key-2", name="bob")
    aliases.set("prod", TO[1], ALICE, "first")
    clock.advance(5)
    aliases.set("prod", SPLIT, bob, "canary")
    aliases.rollback("prod", ALICE, "it swears")
    aliases.delete("prod", bob, "done")
    moves = aliases.history("prod")
    assert [recorded(move) for move in moves] == [
        (4, "delete", "bob", "key-2", "done", TO[1], None),
        (3, "rollback", "alice", "key-1", "it swears", SPLIT, TO[1]),
        (2, "set", "bob", "key-2", "canary", TO[1], SPLIT),
        (1, "set", "alice", "key-1", "first", None, TO[1]),
    ]
    assert (moves[0].moved_at, (moves[0].moved_at - moves[3].moved_at).total_seconds()) == (clock.now, 5)


def test_history_is_paged(aliases: Aliases) -> None:
    for number in range(7):
        aliases.set("prod", TO[number % 2], ALICE)
    assert [move.version for move in aliases.history("prod", limit=3)] == [7, 6, 5]
    assert [move.version for move in aliases.history("prod", before=5, limit=10)] == [4, 3, 2, 1]


def test_repeated_set_is_not_a_move(aliases: Aliases, database: Database) -> None:
    aliases.set("prod", SPLIT, ALICE, "once")
    before = snapshot(database)
    assert aliases.set("prod", SPLIT, ALICE, "again").version == 1
    assert snapshot(database) == before


def test_move_whose_record_fails_is_rolled_back(
    aliases: Aliases, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    aliases.set("prod", TO[1], ALICE)
    before = snapshot(database)

    def torn(**_: Any) -> None:
        raise RuntimeError("power cut")

    monkeypatch.setattr(aliases_module, "AliasMoveRow", torn)
    with pytest.raises(RuntimeError, match="power cut"):
        aliases.set("prod", TO[2], ALICE)
    assert snapshot(database) == before


def test_job_moves_its_alias_and_is_recorded_as_actor(
    aliases: Aliases, jobs: Jobs, leases: Leases, clock: Clock
) -> None:
    aliases.set("prod", SPLIT, ALICE, "canary")
    lease = claimed(jobs, leases)
    leases.finish(lease, {}, adapters=[new_adapter("demo@9")], alias="prod")
    assert aliases.get("prod").adapter_id == "demo@9"
    [move, _] = aliases.history("prod")
    job_id = lease.job.id
    assert recorded(move) == (2, "set", job_id, job_id, "The job succeeded.", SPLIT, Routing.to("demo@9"))
    assert move.moved_at == clock.now
    assert aliases.rollback("prod", ALICE).targets == SPLIT.targets


# -- rollback ----------------------------------------------------------------------------------------------------------


def test_rollback_restores_the_routing_before_the_last_move(aliases: Aliases, adapters: Adapters) -> None:
    aliases.set("prod", TO[1], ALICE)
    aliases.set("prod", TO[2], ALICE)
    assert (aliases.rollback("prod", ALICE).adapter_id, adapters.get("prod").id) == ("demo@1", "demo@1")
    assert aliases.rollback("prod", ALICE).adapter_id == "demo@2", "a rollback is a move, so it can be rolled back"
    assert aliases.get("prod").version == 4


def test_rollback_to_a_deleted_adapter_has_a_remedy(aliases: Aliases, database: Database) -> None:
    aliases.set("prod", TO[1], ALICE)
    aliases.set("prod", TO[2], ALICE)
    Deletions(database).begin("demo@1")
    moves = ((partial(aliases.rollback, "prod", ALICE), True), (partial(aliases.set, "prod", TO[1], ALICE), False))
    for move, has_remedy in moves:
        with pytest.raises(NotFound) as caught:
            move()
        assert (caught.value.code, "to_version" in caught.value.remedy) == (Code.ADAPTER_NOT_FOUND, has_remedy)


def test_rollback_to_a_version(aliases: Aliases) -> None:
    for routing in (TO[1], SPLIT, TO[3]):
        aliases.set("prod", routing, ALICE)
    back = aliases.rollback("prod", ALICE, to_version=2)
    assert (back.version, back.targets, back.shadow) == (4, SPLIT.targets, SPLIT.shadow)
    assert aliases.rollback("prod", ALICE, to_version=4).version == 4, "a move to the present routing is none"


def test_deleted_alias_is_not_found_and_can_be_rolled_back(aliases: Aliases, adapters: Adapters) -> None:
    aliases.set("prod", SPLIT, ALICE)
    aliases.delete("prod", ALICE, "a mistake")
    assert (aliases.find("prod"), aliases.all()) == (None, [])
    assert code(aliases.get, "prod") == Code.ALIAS_NOT_FOUND
    assert code(aliases.delete, "prod", ALICE) == Code.ALIAS_NOT_FOUND
    assert code(adapters.get, "prod") == Code.ADAPTER_NOT_FOUND
    assert aliases.rollback("prod", ALICE).targets == SPLIT.targets
    assert [move.version for move in aliases.history("prod")] == [3, 2, 1]


@pytest.mark.parametrize("to_version", [None, 9])
def test_rollback_without_an_earlier_version_is_refused(
    aliases: Aliases, database: Database, to_version: int | None
) -> None:
    aliases.set("prod", TO[1], ALICE)
    before = snapshot(database)
    assert code(aliases.rollback, "prod", ALICE, to_version=to_version) == Code.ALIAS_VERSION_NOT_FOUND
    assert snapshot(database) == before


def test_rollback_to_a_deleted_state_is_refused(aliases: Aliases) -> None:
    aliases.set("prod", TO[1], ALICE)
    aliases.delete("prod", ALICE)
    aliases.set("prod", TO[2], ALICE)
    assert code(aliases.rollback, "prod", ALICE) == Code.ALIAS_VERSION_NOT_FOUND
    assert code(aliases.rollback, "prod", ALICE, to_version=2) == Code.ALIAS_VERSION_NOT_FOUND
    assert aliases.rollback("prod", ALICE, to_version=1).adapter_id == "demo@1"


def test_unknown_alias_is_not_found(aliases: Aliases, database: Database) -> None:
    before = snapshot(database)
    assert code(aliases.get, "prod") == Code.ALIAS_NOT_FOUND
    assert code(aliases.history, "prod") == Code.ALIAS_NOT_FOUND
    assert code(aliases.rollback, "prod", ALICE) == Code.ALIAS_NOT_FOUND
    assert code(aliases.delete, "prod", ALICE) == Code.ALIAS_NOT_FOUND
    assert snapshot(database) == before


# -- refusals -----------------------------------------------------------------------------------------------


def two(first: str, second: str) -> Routing:
    return Routing(targets=(Target(adapter=first, weight=1), Target(adapter=second, weight=1)))


def shadowed(adapter: str, shadow: str) -> Routing:
    return Routing(targets=Routing.to(adapter).targets, shadow=Shadow(adapter=shadow, share=1))


@pytest.mark.parametrize(
    ("routing", "kind", "expected"),
    [
        (Routing.to("demo@none"), NotFound, Code.ADAPTER_NOT_FOUND),
        (Routing.to("prod"), NotFound, Code.ADAPTER_NOT_FOUND),
        (two("demo@1", "demo@none"), NotFound, Code.ADAPTER_NOT_FOUND),
        (shadowed("demo@1", "demo@none"), NotFound, Code.ADAPTER_NOT_FOUND),
        (Routing.to("demo@secret"), Conflict, Code.ADAPTER_NOT_SERVABLE),
        (shadowed("demo@1", "demo@secret"), Conflict, Code.ADAPTER_NOT_SERVABLE),
        (two("demo@1", "demo@other"), InvalidRequest, Code.ALIAS_BASES_DIFFER),
        (shadowed("demo@1", "demo@other"), InvalidRequest, Code.ALIAS_BASES_DIFFER),
        (two("demo@1", "demo@1"), InvalidRequest, Code.REQUEST_INVALID),
        (shadowed("demo@1", "demo@1"), InvalidRequest, Code.REQUEST_INVALID),
    ],
)
def test_invalid_targets_are_refused(
    aliases: Aliases,
    jobs: Jobs,
    leases: Leases,
    database: Database,
    routing: Routing,
    kind: type[MensError],
    expected: Code,
) -> None:
    made = [new_adapter("demo@secret", published=False), new_adapter("demo@other", base_model="other", final=False)]
    leases.finish(claimed(jobs, leases), {}, adapters=made)
    aliases.set("prod", TO[0], ALICE)
    before = snapshot(database)
    for name in ("prod", "new"):
        with pytest.raises(kind) as caught:
            aliases.set(name, routing, ALICE)
        assert (caught.value.code, caught.value.param) == (expected, "targets")
    assert snapshot(database) == before


def test_alias_may_not_be_a_base_model(aliases: Aliases) -> None:
    assert code(aliases.set, "tiny", TO[1], ALICE, forbidden=frozenset({"tiny"})) == Code.NAME_INVALID
    assert aliases.all() == []


def test_move_from_an_old_version_is_refused(aliases: Aliases, database: Database) -> None:
    aliases.set("prod", TO[1], ALICE)
    aliases.set("prod", TO[2], ALICE, expected=1)
    before = snapshot(database)
    for call, arguments in ((aliases.set, (TO[3], ALICE)), (aliases.rollback, (ALICE,)), (aliases.delete, (ALICE,))):
        with pytest.raises(Conflict) as caught:
            call("prod", *arguments, expected=1)
        assert (caught.value.code, caught.value.details) == (Code.ALIAS_VERSION_CONFLICT, {"version": 2})
    assert code(aliases.set, "new", TO[1], ALICE, expected=1) == Code.ALIAS_VERSION_CONFLICT
    assert snapshot(database) == before
    assert aliases.rollback("prod", ALICE, expected=2).version == 3


# -- concurrency -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
def test_concurrent_moves_make_one_history(aliases: Aliases, known: bool) -> None:
    # Fails on PostgreSQL unless a row, new or existing, is locked from the reading of its version to the record of its move.
    for name in ("prod", "beta"):
        if known:
            aliases.set(name, SPLIT, ALICE)
        at_once(4, lambda number: aliases.set(name, TO[number], Actor(id=f"key-{number}", name="x")))  # noqa: B023
        moves = aliases.history(name)
        assert [move.version for move in moves] == list(range(4 + known, 0, -1))
        assert {move.after.main for move in moves[:4] if move.after} == {f"demo@{number}" for number in range(4)}
        assert all(later.before == earlier.after for later, earlier in pairwise(moves))
        assert moves[0].after == Routing(targets=aliases.get(name).targets)


def test_one_of_several_moves_from_the_same_version_succeeds(aliases: Aliases) -> None:
    aliases.set("prod", TO[0], ALICE)

    def one(number: int) -> str:
        try:
            return aliases.set("prod", TO[1 + number], ALICE, expected=1).name
        except Conflict as error:
            return error.code

    assert sorted(at_once(3, one)) == [Code.ALIAS_VERSION_CONFLICT, Code.ALIAS_VERSION_CONFLICT, "prod"]
    assert aliases.get("prod").version == 2


# -- other releases ------------------------------------------------------------------------------------------------------


def test_worker_of_the_previous_release_moves_an_alias(
    aliases: Aliases, database: Database, adapters: Adapters
) -> None:
    aliases.set("prod", SPLIT, ALICE)
    new = "INSERT INTO aliases (name, version, moved_at) VALUES (:name, 0, 5000) ON CONFLICT DO NOTHING"
    routing = json.dumps(TO[0].model_dump(mode="json"))
    move = "UPDATE aliases SET version = version + 1, adapter_id = 'demo@0', routing = :routing WHERE name = :name"
    record = (
        "INSERT INTO alias_moves (alias, version, moved_at, verb, actor, actor_id, reason) "
        "SELECT name, version, 5000, 'set', 'old', 'ftjob-0', 'x' FROM aliases WHERE name = :name"
    )
    with database.write() as session:
        for name in ("prod", "new"):
            for statement in (new, move, record):
                session.execute(text(statement), {"name": name, "routing": routing})
    for name in ("prod", "new"):
        assert aliases.get(name).targets == TO[0].targets
        assert adapters.get(name).id == "demo@0"
        aliases.set(name, TO[1], ALICE)
        assert aliases.rollback(name, ALICE).adapter_id == "demo@0"
