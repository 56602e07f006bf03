"""Foreign names on both databases: separate for each tenant, recorded like moves of aliases, and with a clear error if
the target is gone.
"""

from __future__ import annotations

from typing import Any

import pytest

from shared.database.adapters import Adapters
from shared.database.change_counter import Changes
from shared.database.connection import Database
from shared.database.deletions import Deletions
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.names.aliases import Actor, Aliases
from shared.database.names.foreign_names import ForeignNames
from shared.database.routing import Destination, Routing, StandsFor
from shared.database.tenancy import SHARED
from shared.errors import Code, MensError
from tests.support.builders import claimed, new_adapter, snapshot

ALICE = Actor(id="key-1", name="alice")
MODEL = "ft:gpt-4o-mini-2024-07-18:acme:support:9xAbC1"
LONGEST = "ft:" + "x" * 253
SUPPORT = StandsFor(kind="alias", name="support")
BASES = frozenset({"tiny"})


@pytest.fixture
def names(database: Database, jobs: Jobs, leases: Leases) -> ForeignNames:
    """Foreign names; a job has made demo@0 to demo@3 at the steps 10 to 13, and the alias support points to the last."""
    made = [new_adapter(f"demo@{number}", step=10 + number, final=number == 3) for number in range(4)]
    hidden = new_adapter("demo@9", step=19, final=False, published=False)
    leases.finish(claimed(jobs, leases), {}, adapters=[*made, hidden])
    Aliases(database).set("support", Routing.to("demo@3"), ALICE)
    return ForeignNames(database)


def code(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(MensError) as caught:
        call(*arguments, **options)
    return caught.value.code


def answering(names: ForeignNames, name: str = MODEL) -> str | None:
    """The adapter that a name leads to."""
    found = names.resolve(name)
    return found.routing.main if found and found.routing else None


@pytest.mark.parametrize("name", [MODEL, LONGEST])
def test_name_follows_its_alias(names: ForeignNames, database: Database, name: str) -> None:
    made = names.set(name, SUPPORT, ALICE, "we leave", bases=BASES)
    assert (made.name, made.tenant, made.stands_for, made.version) == (name, SHARED, SUPPORT, 1)
    assert names.all() == [names.get(name)] == [made]
    assert names.resolve(name) == Destination("support", Routing.to("demo@3"), is_foreign=True)
    Aliases(database).set("support", Routing.to("demo@1"), ALICE)
    assert answering(names, name) == "demo@1"


def test_name_of_an_adapter_and_of_a_base(names: ForeignNames) -> None:
    names.set(f"{MODEL}:ckpt-step-88", StandsFor(kind="adapter", name="demo@1"), ALICE, bases=BASES)
    names.set("gpt-4o-mini-2024-07-18", StandsFor(kind="base", name="tiny"), ALICE, bases=BASES)
    assert answering(names, f"{MODEL}:ckpt-step-88") == "demo@1"
    assert names.resolve("gpt-4o-mini-2024-07-18") == Destination("tiny", None, is_foreign=True)


def test_every_move_is_recorded(names: ForeignNames) -> None:
    names.set(MODEL, SUPPORT, ALICE, "first", bases=BASES)
    names.set(MODEL, SUPPORT, ALICE, "again", bases=BASES)
    one = StandsFor(kind="adapter", name="demo@1")
    names.set(MODEL, one, Actor(id="key-2", name="bob"), "second", bases=BASES, expected=1)
    names.delete(MODEL, ALICE, "done")
    moves = [
        (move.version, move.verb, move.actor, move.reason, move.before, move.after) for move in names.history(MODEL)
    ]
    assert moves == [
        (3, "delete", "alice", "done", one, None),
        (2, "set", "bob", "second", SUPPORT, one),
        (1, "set", "alice", "first", None, SUPPORT),
    ]
    assert [move.version for move in names.history(MODEL, before=3, limit=1)] == [2]
    assert names.find(MODEL) is None
    assert names.set(MODEL, SUPPORT, ALICE, bases=BASES).version == 4, "the history goes on"


def test_changes_are_counted_for_the_caches(names: ForeignNames, database: Database) -> None:
    counts = [Changes(database).count()]
    names.set(MODEL, SUPPORT, ALICE, bases=BASES)
    counts.append(Changes(database).count())
    names.delete(MODEL, ALICE)
    counts.append(Changes(database).count())
    assert counts == sorted(set(counts))


@pytest.mark.parametrize(
    ("name", "stands_for", "refused"),
    [
        ("tiny", SUPPORT, Code.NAME_INVALID),
        ("support", StandsFor(kind="adapter", name="demo@1"), Code.NAME_INVALID),
        (MODEL, StandsFor(kind="alias", name="nobody"), Code.ALIAS_NOT_FOUND),
        (MODEL, StandsFor(kind="adapter", name="demo@7"), Code.ADAPTER_NOT_FOUND),
        (MODEL, StandsFor(kind="adapter", name="demo@9"), Code.ADAPTER_NOT_SERVABLE),
        (MODEL, StandsFor(kind="base", name="huge"), Code.MODEL_NOT_FOUND),
    ],
)
def test_refused_mapping_changes_nothing(
    names: ForeignNames, database: Database, name: str, stands_for: StandsFor, refused: Code
) -> None:
    before = snapshot(database)
    assert code(names.set, name, stands_for, ALICE, bases=BASES) == refused
    assert snapshot(database) == before


def test_stale_version_is_refused(names: ForeignNames) -> None:
    names.set(MODEL, SUPPORT, ALICE, bases=BASES)
    for call in (names.delete, lambda *what, **how: names.set(what[0], SUPPORT, what[1], bases=BASES, **how)):
        assert code(call, MODEL, ALICE, expected=7) == Code.ALIAS_VERSION_CONFLICT


def test_unknown_names(names: ForeignNames) -> None:
    assert names.resolve(MODEL) is names.find(MODEL) is names.resolve(f"{MODEL}:ckpt-step-1") is None
    assert [code(call, MODEL) for call in (names.get, names.history)] == [Code.NAME_NOT_FOUND] * 2
    assert code(names.delete, MODEL, ALICE) == Code.NAME_NOT_FOUND
    assert names.resolve("nul\0") is None


def test_deleted_alias_is_named_and_a_rollback_brings_the_name_back(names: ForeignNames, database: Database) -> None:
    names.set(MODEL, SUPPORT, ALICE, bases=BASES)
    Aliases(database).delete("support", ALICE)
    with pytest.raises(MensError, match="stands for the alias 'support', which no longer exists") as caught:
        names.resolve(MODEL)
    assert caught.value.code == Code.MODEL_NOT_FOUND
    Aliases(database).rollback("support", ALICE)
    assert answering(names) == "demo@3"


def test_tenants_map_the_same_name_each_for_itself(names: ForeignNames, database: Database) -> None:
    jobs, leases = Jobs(database), Leases(database, 60.0)
    for tenant in ("acme", "other"):
        lease = claimed(jobs.of(tenant), leases)
        leases.finish(lease, {}, adapters=[new_adapter(f"{tenant}@1")], alias="support")
    names.set(MODEL, SUPPORT, ALICE, bases=BASES)
    acme, other = names.of("acme"), names.of("other")
    assert [answering(view) for view in (names, acme, other)] == ["demo@3", "acme@1", "other@1"], (
        "as the asking one sees it"
    )
    one = StandsFor(kind="adapter", name="acme@1")
    assert acme.set(MODEL, one, ALICE, bases=BASES).version == 1
    assert code(other.set, MODEL, one, ALICE, bases=BASES) == Code.ADAPTER_NOT_FOUND
    assert [view.get(MODEL).tenant for view in (names, acme, other)] == [SHARED, "acme", SHARED]
    assert code(other.delete, MODEL, ALICE) == Code.TENANT_FORBIDDEN
    acme.delete(MODEL, ALICE)
    assert acme.get(MODEL).tenant == SHARED, "the shared one is seen again"
    assert [move.verb for move in acme.history(MODEL)] == ["set"], "and so is its history"


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_checkpoint_of_a_mapped_model_is_the_job_s_at_that_step(names: ForeignNames) -> None:
    names.set(MODEL, SUPPORT, ALICE, bases=BASES)
    assert answering(names, f"{MODEL}:ckpt-step-11") == "demo@1"
    with pytest.raises(MensError, match="no checkpoint of step 19: it has those of the steps 10, 11, 12, 13") as caught:
        names.resolve(f"{MODEL}:ckpt-step-19")
    assert caught.value.code == Code.MODEL_NOT_FOUND
    names.set(f"{MODEL}:ckpt-step-19", StandsFor(kind="adapter", name="demo@0"), ALICE, bases=BASES)
    assert answering(names, f"{MODEL}:ckpt-step-19") == "demo@0", "a name of its own comes first"


def test_base_has_no_checkpoints(names: ForeignNames) -> None:
    names.set("gpt-4o-mini", StandsFor(kind="base", name="tiny"), ALICE, bases=BASES)
    assert code(names.resolve, "gpt-4o-mini:ckpt-step-11") == Code.MODEL_NOT_FOUND


# -- others that use the same rows -----------------------------------------------------------------------------------


def test_foreign_names_are_not_aliases(names: ForeignNames, database: Database) -> None:
    names.set("gpt-4o", SUPPORT, ALICE, bases=BASES)
    aliases = Aliases(database)
    assert [alias.name for alias in aliases.all()] == ["support"]
    assert aliases.find("gpt-4o") is None
    assert [code(call, "gpt-4o", ALICE) for call in (aliases.delete, aliases.rollback)] == [
        Code.ALIAS_NOT_FOUND,
        Code.ALIAS_VERSION_NOT_FOUND,
    ]
    assert code(Adapters(database).get, "gpt-4o") == Code.ADAPTER_NOT_FOUND


def test_alias_that_takes_a_foreign_name_replaces_it_and_that_is_recorded(
    names: ForeignNames, database: Database
) -> None:
    names.set("gpt-4o", SUPPORT, ALICE, bases=BASES)
    aliases = Aliases(database)
    assert aliases.set("gpt-4o", Routing.to("demo@1"), ALICE).version == 2
    assert (names.all(), names.resolve("gpt-4o")) == ([], None)
    last, *_ = aliases.history("gpt-4o")
    assert (last.before, last.after) == (SUPPORT, Routing.to("demo@1"))
    assert code(aliases.rollback, "gpt-4o", ALICE) == Code.ALIAS_VERSION_NOT_FOUND


def test_adapter_that_a_name_stands_for_is_not_deleted(names: ForeignNames, database: Database) -> None:
    names.set(f"{MODEL}:ckpt-step-88", StandsFor(kind="adapter", name="demo@1"), ALICE, bases=BASES)
    with pytest.raises(MensError, match=r"needed by the name 'ft:.*:ckpt-step-88'") as caught:
        Deletions(database).begin("demo@1")
    assert caught.value.code == Code.MODEL_IN_USE
    names.delete(f"{MODEL}:ckpt-step-88", ALICE)
    Deletions(database).begin("demo@1")
