"""No name moves without evidence: by any operation, through any other name, and in any race. On both databases."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from shared.database.adapters import Adapters
from shared.database.connection import Database
from shared.database.deletions import Deletions
from shared.database.gates.policies import Policies
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.names.aliases import Actor, Aliases
from shared.database.names.foreign_names import ForeignNames
from shared.database.names.move_evidence import Terms
from shared.database.routing import Routing, Shadow, StandsFor, Target
from shared.database.tenancy import SHARED
from shared.errors import Code, InvalidRequest, MensError
from tests.support.builders import at_once, claimed, new_adapter
from tests.support.clock import Clock
from tests.support.gate_rows import ADMIN, LAX, STRICT, TRAINER, digest_of, govern, receipt, store

ALICE = Actor(id="key-1", name="alice")
A, B, C = "demo@1", "demo@2", "demo@3"
FOREIGN = "ft:gpt-4o-mini:acme:support:9x1"
SERVED = Terms(served=frozenset({"b" * 64}))
OVERRIDE = Terms(overrides=True)


def split(**weights: int) -> Routing:
    return Routing(targets=tuple(Target(adapter=f"demo@{name[1:]}", weight=weight) for name, weight in weights.items()))


def code(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    with pytest.raises(MensError) as caught:
        call(*arguments, **options)
    return caught.value.code


def register(database: Database, *ids: str, tenant: str = SHARED, **changes: Any) -> None:
    leases = Leases(database, 60)
    made = [new_adapter(name, final=False, **changes) for name in ids]
    leases.finish(claimed(Jobs(database, tenant), leases), {}, adapters=made)


@pytest.fixture
def aliases(database: Database) -> Aliases:
    """Three adapters, and an alias that points to the first and that a policy governs since."""
    register(database, A, B, C)
    aliases = Aliases(database)
    aliases.set("prod", Routing.to(A), ALICE)
    govern(database, "alias:prod")
    return aliases


@pytest.fixture
def names(database: Database) -> ForeignNames:
    return ForeignNames(database)


# -- what governs -------------------------------------------------------------------------------------------------


def test_aliases_are_listed_with_what_governs_their_moves(database: Database, names: ForeignNames) -> None:
    """Those of the tenant, of which some hide a shared alias or foreign name, and shared ones, under every assignment."""
    register(database, A)
    register(database, B, tenant="acme")
    shared, acme = Aliases(database), Aliases(database, "acme")
    shared.set("both", Routing.to(A), ALICE)
    shared.set("shared", Routing.to(A), ALICE)
    names.set("foreign", StandsFor(kind="adapter", name=A), ALICE, bases=())
    for name in ("both", "foreign", "own"):
        acme.set(name, Routing.to(B), ALICE)
    governs = set()
    scopes = [("server", SHARED), ("tenant", SHARED), ("tenant", "acme")]
    scopes += [(f"alias:{name}", tenant) for tenant in (SHARED, "acme") for name in ("both", "foreign", "shared")]
    for scope, tenant in [("", ""), *scopes]:
        if scope:
            govern(database, scope, tenant=tenant)
        for view in (shared, acme):
            for alias in view.governed():
                assert alias.governed_by == view.governing(alias.name).policy, (scope, tenant, alias)
                assert view.governed(alias.name) == [alias]
                governs |= {alias.governed_by and (alias.governed_by.scope, alias.governed_by.tenant)}
    assert governs == {None, *scopes}
    assert code(acme.governed, "nobody") == Code.ALIAS_NOT_FOUND


# -- what a move needs ---------------------------------------------------------------------------------------------


def test_without_a_policy_no_evidence_is_required(database: Database) -> None:
    register(database, A)
    aliases = Aliases(database)
    aliases.set("prod", Routing.to(A), ALICE)
    assert aliases.history("prod")[0].gate is None


def test_an_adapter_without_a_receipt_takes_no_alias(aliases: Aliases) -> None:
    with pytest.raises(MensError) as caught:
        aliases.set("prod", Routing.to(B), ALICE)
    error = caught.value
    assert error.code is Code.GATE_MISSING
    assert error.details["policy"]["digest"] == digest_of(STRICT)
    assert (error.details["adapter"], error.details["incumbent"], error.details["scope"]) == (B, A, "alias:prod")
    assert "POST /v1/receipts" in error.remedy
    assert aliases.get("prod").adapter_id == A


def test_one_with_a_receipt_takes_it_in_one_call_and_the_history_says_by_what(
    aliases: Aliases, database: Database
) -> None:
    proof = receipt(database, B, A)
    assert aliases.set("prod", Routing.to(B), ALICE, terms=SERVED).adapter_id == B
    gate = aliases.history("prod")[0].gate
    assert gate and gate["receipts"] == [proof.id] and gate["override"] is False
    assert gate["policy"] == {"tenant": SHARED, "name": "strict", "digest": digest_of(STRICT)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"passed": False}, "GATE_FAILED"),
        ({"incumbent": C}, "GATE_STALE"),
        ({"incumbent": None}, "GATE_STALE"),
        ({"incumbent_digest": "e" * 64}, "GATE_STALE"),
        ({"serving_digest": "e" * 64}, "GATE_STALE"),
        ({"serving_digest": None}, "GATE_STALE"),
        ({"digest": "e" * 64}, "GATE_MISSING"),
        ({"source": LAX}, "GATE_MISSING"),
        ({"adapter": C}, "GATE_MISSING"),
    ],
)
def test_a_receipt_of_something_else_moves_nothing(
    aliases: Aliases, database: Database, changes: dict[str, Any], expected: str
) -> None:
    receipt(database, **({"adapter": B, "incumbent": A} | changes))
    assert code(aliases.set, "prod", Routing.to(B), ALICE, terms=SERVED) == expected
    assert aliases.get("prod").adapter_id == A


def test_what_failed_is_said_with_its_numbers(aliases: Aliases, database: Database) -> None:
    receipt(database, B, A, passed=False)
    with pytest.raises(MensError, match=r"truncation failed: 0\.9; at most 0\.5 is asked, 0\.4 above it") as caught:
        aliases.set("prod", Routing.to(B), ALICE)
    assert [row["name"] for row in caught.value.details["gates"]] == ["truncation"]


def test_a_receipt_expires(aliases: Aliases, database: Database, clock: Clock) -> None:
    receipt(database, B, A)
    clock.advance(timedelta(days=1).total_seconds())
    assert code(aliases.set, "prod", Routing.to(B), ALICE) == "GATE_STALE"
    receipt(database, B, A)
    assert aliases.set("prod", Routing.to(B), ALICE).adapter_id == B


def test_the_newest_receipt_counts_and_not_the_best(aliases: Aliases, database: Database, clock: Clock) -> None:
    receipt(database, B, A)
    clock.advance(1)
    receipt(database, B, A, passed=False)
    assert code(aliases.set, "prod", Routing.to(B), ALICE) == "GATE_FAILED"


def test_a_changed_policy_requires_a_receipt_of_its_own(aliases: Aliases, database: Database) -> None:
    receipt(database, B, A)
    govern(database, "alias:prod", STRICT.replace("{}", "{max_fraction: 0.1}"))
    assert code(aliases.set, "prod", Routing.to(B), ALICE) == "GATE_MISSING"


def test_the_same_policy_by_another_name_is_the_same(aliases: Aliases, database: Database) -> None:
    receipt(database, B, A)
    govern(database, "alias:prod", STRICT + "# the same\n", name="renamed")
    assert aliases.set("prod", Routing.to(B), ALICE).adapter_id == B


# -- every way to answer for an alias ------------------------------------------------------------------------------


def test_a_split_needs_a_receipt_of_whatever_grows(aliases: Aliases, database: Database) -> None:
    assert code(aliases.set, "prod", split(_1=99, _2=1), ALICE) == "GATE_MISSING"
    receipt(database, B, A)
    aliases.set("prod", split(_1=99, _2=1), ALICE)
    assert code(aliases.set, "prod", split(_1=90, _2=1, _3=9), ALICE) == "GATE_MISSING"
    # Back to what has most of the answers needs nothing.
    aliases.set("prod", Routing.to(A), ALICE)
    assert aliases.get("prod").adapter_id == A


def test_a_share_does_not_grow_on_an_expired_receipt(aliases: Aliases, database: Database, clock: Clock) -> None:
    receipt(database, B, A)
    aliases.set("prod", split(_1=99, _2=1), ALICE)
    clock.advance(timedelta(days=2).total_seconds())
    assert code(aliases.set, "prod", split(_1=50, _2=50), ALICE) == "GATE_STALE"
    assert code(aliases.set, "prod", Routing.to(B), ALICE) == "GATE_STALE"


def test_a_shadow_answers_nobody_and_is_not_held(aliases: Aliases) -> None:
    shadowed = Routing.to(A).model_copy(update={"shadow": Shadow(adapter=B, share=1.0)})
    aliases.set("prod", shadowed, ALICE)
    assert code(aliases.set, "prod", Routing.to(B), ALICE) == "GATE_MISSING"
    aliases.set("prod", Routing.to(A), ALICE)
    aliases.rollback("prod", ALICE)
    assert (aliases.get("prod").adapter_id, aliases.get("prod").shadow) == (A, shadowed.shadow)


def test_a_jobs_own_alias_stays_and_the_job_says_so(aliases: Aliases, database: Database) -> None:
    jobs, leases = Jobs(database), Leases(database, 60)
    job = leases.finish(claimed(jobs, leases), {"adapter_id": "new@1"}, adapters=[new_adapter("new@1")], alias="prod")
    assert (job.state, aliases.get("prod").adapter_id) == ("succeeded", A)
    assert Adapters(database).get("new@1").published
    assert job.result["alias"]["moved"] is False
    assert job.result["alias"]["error"]["code"] == "GATE_MISSING"
    said = [event.message for event in jobs.events(job.id)]
    assert any("GATE_MISSING" in message for message in said)
    assert said[-1] == "Job succeeded; new adapter new@1. The alias prod stays at demo@1: GATE_MISSING."


def test_a_jobs_own_alias_moves_on_the_receipt_that_the_job_stored(aliases: Aliases, database: Database) -> None:
    jobs, leases = Jobs(database), Leases(database, 60)
    lease = claimed(jobs, leases)
    leases.publish(lease, [new_adapter("new@1")], {}, alias="prod")
    assert Adapters(database).get("new@1").published
    known = receipt(database, "new@1", A)
    job = leases.finish(lease, {}, adapters=[new_adapter("new@1")], alias="prod", terms=SERVED)
    assert aliases.get("prod").adapter_id == "new@1"
    assert aliases.history("prod")[0].gate["receipts"] == [known.id]
    assert job.result["alias"] == {"name": "prod", "moved": True}


def test_deleting_and_making_an_alias_again_is_no_way_round(aliases: Aliases, database: Database) -> None:
    receipt(database, B, None)  # better than the base, and never compared with the incumbent
    aliases.delete("prod", ALICE)
    assert code(aliases.set, "prod", Routing.to(B), ALICE) == "GATE_STALE"
    receipt(database, B, A)
    assert aliases.set("prod", Routing.to(B), ALICE).adapter_id == B


def test_deleting_the_last_adapter_too_is_no_way_round(aliases: Aliases, database: Database) -> None:
    register(database, C)
    receipt(database, B, A)
    aliases.set("prod", Routing.to(B), ALICE)
    aliases.delete("prod", ALICE)
    Deletions(database).begin(B)
    receipt(database, C, None)
    assert code(aliases.set, "prod", Routing.to(C), ALICE) == "GATE_STALE"
    receipt(database, C, A)
    assert aliases.set("prod", Routing.to(C), ALICE).adapter_id == C


def test_rollback_to_what_the_alias_has_held_is_always_allowed(
    aliases: Aliases, database: Database, clock: Clock
) -> None:
    receipt(database, B, A)
    aliases.set("prod", Routing.to(B), ALICE)
    clock.advance(timedelta(days=90).total_seconds())
    assert aliases.rollback("prod", ALICE).adapter_id == A
    assert aliases.rollback("prod", ALICE).adapter_id == B
    aliases.delete("prod", ALICE)
    assert aliases.rollback("prod", ALICE).adapter_id == B


def test_a_foreign_name_is_no_way_round(aliases: Aliases, names: ForeignNames, database: Database) -> None:
    set_name = partial(names.set, bases=frozenset({"tiny"}))
    set_name(FOREIGN, StandsFor(kind="alias", name="prod"), ALICE)
    aliases.set("toy", Routing.to(B), ALICE)
    assert code(set_name, FOREIGN, StandsFor(kind="adapter", name=B), ALICE) == "GATE_MISSING"
    assert code(set_name, FOREIGN, StandsFor(kind="alias", name="toy"), ALICE) == "GATE_MISSING"
    # An alias of the name replaces the foreign name.
    register(database, C)
    assert code(aliases.set, FOREIGN, Routing.to(C), ALICE) == "GATE_MISSING"
    receipt(database, B, A)
    Policies(database).assign(f"alias:{FOREIGN}", "strict", TRAINER)
    assert set_name(FOREIGN, StandsFor(kind="adapter", name=B), ALICE).stands_for.name == B


def test_an_alias_under_the_same_policy_is_no_way_round_for_a_foreign_name(
    aliases: Aliases, names: ForeignNames, database: Database
) -> None:
    names.set(FOREIGN, StandsFor(kind="alias", name="prod"), ALICE, bases=frozenset())
    aliases.set("twin", Routing.to(B), ALICE)
    govern(database, "alias:twin", by=TRAINER)
    to_twin = partial(names.set, FOREIGN, StandsFor(kind="alias", name="twin"), ALICE, bases=frozenset())
    assert code(to_twin) == "GATE_MISSING", "B was never compared with what answers for the name"
    receipt(database, B, A)
    assert to_twin().stands_for.name == "twin"


def test_a_foreign_name_does_not_leave_its_policy_by_steps_that_require_nothing(
    aliases: Aliases, names: ForeignNames, database: Database
) -> None:
    """Each first step keeps the adapter that answers; the second would be free, were the policy left by the first."""
    set_name = partial(names.set, FOREIGN, by=ALICE, bases=frozenset())
    set_name(StandsFor(kind="alias", name="prod"))
    aliases.set("toy", Routing.to(A), ALICE)
    assert code(set_name, StandsFor(kind="alias", name="toy")) == "GATE_MISSING", "the alias toy moves as it likes"
    assert code(set_name, StandsFor(kind="adapter", name=A)) == "GATE_MISSING", "an adapter has no policy"
    assert code(aliases.set, FOREIGN, Routing.to(A), ALICE) == "GATE_MISSING", "nor has an alias of that name"
    jobs, leases = Jobs(database), Leases(database, 60)
    receipt(database, "new@1", A)
    job = leases.finish(claimed(jobs, leases), {}, adapters=[new_adapter("new@1")], alias=FOREIGN)
    assert job.result["alias"]["error"]["code"] == "GATE_MISSING"
    assert code(set_name, StandsFor(kind="base", name="tiny"), bases=frozenset({"tiny"})) == "GATE_MISSING", (
        "nor has a base"
    )
    assert code(names.delete, FOREIGN, ALICE) == "GATE_MISSING", "nor has a name that is made anew"
    set_name(StandsFor(kind="alias", name="prod"))
    # With a policy of its own, or by an admin, it may.
    assert code(set_name, StandsFor(kind="adapter", name=A), terms=OVERRIDE, reason="") == "REQUEST_INVALID"
    Policies(database).assign(f"alias:{FOREIGN}", "strict", TRAINER)
    set_name(StandsFor(kind="adapter", name=A))
    assert code(set_name, StandsFor(kind="adapter", name=B)) == "GATE_MISSING"
    set_name(StandsFor(kind="alias", name="toy"), terms=OVERRIDE, reason="toy is ours")
    assert names.history(FOREIGN)[0].gate["override"] is True


def test_a_policy_of_a_name_that_follows_an_alias_is_assigned_to_the_alias(
    names: ForeignNames, database: Database
) -> None:
    """Else it would seem to hold the name, which goes where the alias goes."""
    register(database, A, B)
    Aliases(database).set("toy", Routing.to(A), ALICE)
    names.set(FOREIGN, StandsFor(kind="alias", name="toy"), ALICE, bases=frozenset())
    store(database, "strict", STRICT)
    policies = Policies(database)
    with pytest.raises(InvalidRequest, match="stands for the alias 'toy'") as caught:
        policies.assign(f"alias:{FOREIGN}", "strict", ADMIN)
    assert caught.value.remedy.endswith("PUT /v1/policy_assignments/alias:toy.")
    assert policies.assignments() == []
    policies.assign("alias:toy", "strict", ADMIN)
    assert policies.assign(f"alias:{FOREIGN}", "strict", ADMIN)


def test_the_name_of_a_deleted_alias_does_not_follow_one_that_moves_as_it_likes(
    aliases: Aliases, names: ForeignNames
) -> None:
    aliases.set("toy", Routing.to(A), ALICE)
    aliases.delete("prod", ALICE)
    follow = partial(names.set, "prod", StandsFor(kind="alias", name="toy"), ALICE, bases=frozenset())
    assert code(follow) == "GATE_MISSING"


def test_a_new_foreign_name_may_stand_for_an_alias_under_the_same_policy(
    names: ForeignNames, aliases: Aliases, database: Database
) -> None:
    govern(database, "tenant")
    assert names.set(FOREIGN, StandsFor(kind="alias", name="prod"), ALICE, bases=frozenset())


def test_a_trainer_gives_no_policy_of_its_own_to_a_foreign_name_that_is_governed(
    aliases: Aliases, names: ForeignNames, database: Database
) -> None:
    names.set(FOREIGN, StandsFor(kind="alias", name="prod"), ALICE, bases=frozenset())
    store(database, "lax", LAX, by=TRAINER)
    policies = Policies(database)
    assert code(policies.assign, f"alias:{FOREIGN}", "lax", TRAINER) == "ROLE_INSUFFICIENT"
    assert code(aliases.set, FOREIGN, Routing.to(B), ALICE, policy=("lax", TRAINER)) == "ROLE_INSUFFICIENT"
    assert policies.assign(f"alias:{FOREIGN}", "strict", TRAINER), "the same policy changes nothing"


def test_a_foreign_name_under_a_tenants_policy_needs_a_receipt_of_its_adapter(
    names: ForeignNames, database: Database
) -> None:
    register(database, A)
    govern(database, "tenant")
    assert code(names.set, FOREIGN, StandsFor(kind="adapter", name=A), ALICE, bases=frozenset()) == "GATE_MISSING"
    receipt(database, A, None)
    assert names.set(FOREIGN, StandsFor(kind="adapter", name=A), ALICE, bases=frozenset())


def test_a_tenants_alias_that_would_hide_a_governed_one_needs_its_receipt(aliases: Aliases, database: Database) -> None:
    acme = aliases.of("acme")
    register(database, "own@1", tenant="acme")
    assert code(acme.set, "prod", Routing.to("own@1"), ALICE) == "GATE_MISSING"
    receipt(database, "own@1", None, tenant="acme")
    assert code(acme.set, "prod", Routing.to("own@1"), ALICE) == "GATE_STALE"
    receipt(database, "own@1", A, tenant="acme")
    assert acme.set("prod", Routing.to("own@1"), ALICE).tenant == "acme"
    register(database, "own@2", tenant="acme")
    assert code(acme.set, "prod", Routing.to("own@2"), ALICE) == "GATE_MISSING", "what it hides governs on"
    acme.delete("prod", ALICE)
    assert acme.get("prod").adapter_id == A, "back to what the same policy governs"


def test_deleting_an_alias_that_hides_another_is_a_move_to_that(aliases: Aliases, database: Database) -> None:
    acme = aliases.of("acme")
    register(database, "own@1", tenant="acme")
    receipt(database, "own@1", A, tenant="acme")
    acme.set("prod", Routing.to("own@1"), ALICE)
    govern(database, "alias:prod", LAX, tenant="acme", name="ours")
    assert code(acme.delete, "prod", ALICE) == "GATE_MISSING"
    acme.delete("prod", ALICE, "closing", terms=OVERRIDE)
    assert acme.get("prod").tenant == SHARED


def test_another_tenants_receipt_moves_nothing(aliases: Aliases, database: Database) -> None:
    receipt(database, B, A, tenant="acme")
    assert code(aliases.set, "prod", Routing.to(B), ALICE) == "GATE_MISSING"


def test_an_adapter_that_was_deleted_and_made_again_with_other_bytes_has_no_receipt(
    aliases: Aliases, database: Database
) -> None:
    receipt(database, B, A)
    Deletions(database).begin(B)
    assert code(aliases.set, "prod", Routing.to(B), ALICE) == "ADAPTER_NOT_FOUND"
    register(database, B, digest="e" * 64)
    assert code(aliases.set, "prod", Routing.to(B), ALICE) == "GATE_MISSING"


def test_the_nearest_policy_governs(database: Database) -> None:
    register(database, A)
    aliases, acme = Aliases(database), Aliases(database, "acme")
    govern(database, "server", name="everywhere")
    assert acme.governing("prod").policy.scope == "server"
    govern(database, "tenant", LAX, tenant="acme", name="ours")
    assert (acme.governing("prod").policy.scope, aliases.governing("prod").policy.scope) == ("tenant", "server")
    govern(database, "alias:prod", tenant="acme")
    assert acme.governing("prod").policy.scope == "alias:prod"
    assert code(acme.set, "prod", Routing.to(A), ALICE) == "GATE_MISSING"


# -- override, and who may change a policy -------------------------------------------------------------------------


def test_an_override_needs_a_reason_and_stays_in_the_history(aliases: Aliases) -> None:
    with pytest.raises(InvalidRequest, match="reason"):
        aliases.set("prod", Routing.to(B), ALICE, " ", terms=OVERRIDE)
    aliases.set("prod", Routing.to(B), ALICE, "the incumbent leaks", terms=OVERRIDE)
    move = aliases.history("prod")[0]
    assert (move.gate["override"], move.gate["receipts"], move.reason) == (True, [], "the incumbent leaks")


@pytest.mark.parametrize("scope", ["alias:prod", "tenant", "server"])
def test_a_trainer_neither_changes_nor_removes_nor_goes_round_what_governs(
    aliases: Aliases, database: Database, scope: str
) -> None:
    policies = Policies(database)
    store(database, "lax", LAX, by=TRAINER)
    assert code(policies.assign, scope, "lax", TRAINER) == "ROLE_INSUFFICIENT"
    assert code(policies.assign, "alias:prod", None, TRAINER) == "ROLE_INSUFFICIENT"
    govern(database, "server", name="all")
    assert code(policies.assign, "alias:new", "lax", TRAINER) == "ROLE_INSUFFICIENT"


def test_a_trainer_may_let_a_policy_govern_where_none_does(database: Database) -> None:
    register(database, A)
    store(database, "strict", STRICT, by=TRAINER)
    aliases = Aliases(database)
    assert code(aliases.set, "prod", Routing.to(A), ALICE, policy=("strict", TRAINER)) == "GATE_MISSING"
    assert aliases.governing("prod").policy is None, "what was refused has changed nothing"
    aliases.set("prod", Routing.to(A), ALICE)
    aliases.set("prod", Routing.to(A), ALICE, "from now on", policy=("strict", TRAINER))
    assert aliases.governing("prod").policy.policy.name == "strict"
    change = Policies(database).history("alias:prod")[0]
    assert (change.actor, change.reason, change.before, change.after.name) == ("tom", "from now on", None, "strict")


def test_storing_a_policy_again_governs_nothing_by_itself(aliases: Aliases, database: Database) -> None:
    store(database, "strict", LAX, by=TRAINER)
    assert aliases.governing("prod").policy.policy.digest == digest_of(STRICT)


def test_an_admin_removes_a_policy_and_that_is_recorded(aliases: Aliases, database: Database) -> None:
    policies = Policies(database)
    assert policies.assign("alias:prod", None, ADMIN, "an emergency") is None
    aliases.set("prod", Routing.to(B), ALICE)
    change = policies.history("alias:prod")[0]
    assert (change.version, change.reason, change.after) == (2, "an emergency", None)
    assert policies.assignments() == []


def test_the_servers_policy_is_the_operators(database: Database) -> None:
    store(database, "strict", STRICT, "acme")
    assert code(Policies(database, "acme").assign, "server", "strict", ADMIN) == "TENANT_FORBIDDEN"


def test_tenants_do_not_see_each_others_policies(database: Database) -> None:
    govern(database, "alias:prod", tenant="acme")
    other = Policies(database, "other")
    assert (other.all(), other.assignments(), other.history("alias:prod")) == ([], [], [])
    assert code(other.get, "strict") == "POLICY_NOT_FOUND"
    assert code(other.get, digest_of(STRICT)) == "POLICY_NOT_FOUND"


# -- races ---------------------------------------------------------------------------------------------------------


def test_of_two_moves_in_flight_one_is_stale(aliases: Aliases, database: Database) -> None:
    receipt(database, B, A)
    receipt(database, C, A)

    def race(index: int) -> str:
        try:
            return aliases.set("prod", Routing.to((B, C)[index]), ALICE).adapter_id
        except MensError as error:
            return str(error.code)

    results = at_once(2, race)
    moved = aliases.get("prod").adapter_id
    assert sorted(results) == sorted([moved, "GATE_STALE"])
    assert [move.after.main for move in aliases.history("prod")] == [moved, A]


def test_a_policy_change_in_flight_is_before_a_move_or_after_it(aliases: Aliases, database: Database) -> None:
    """Assign another policy after a move has read the first one: the assignment waits until the move has ended."""
    receipt(database, B, A)
    govern(database, "alias:other", LAX, name="new")
    judged, changed = threading.Event(), threading.Event()
    order: list[str] = []

    def change() -> None:
        judged.wait(60)
        Policies(database).assign("alias:prod", "new", ADMIN)
        order.append("policy")
        changed.set()

    thread = threading.Thread(target=change)
    thread.start()
    with database.write() as session:
        from shared.database.names.aliases import lock_alias, move
        from shared.database.names.move_evidence import check, standing

        now = database.now(session)
        row = lock_alias(session, SHARED, "prod", now)
        before = standing(session, row)
        gate = check(session, before, Routing.to(B), SERVED, "", now)
        judged.set()
        assert not changed.wait(0.3), "the policy changed under a move that it governs"
        move(session, row, Routing.to(B), ALICE, "set", "", now, gate)
        order.append("move")
    thread.join(60)
    assert order == ["move", "policy"]
    assert code(aliases.set, "prod", Routing.to(C), ALICE) == "GATE_MISSING"
    assert aliases.governing("prod").policy.policy.digest == digest_of(LAX)


def test_moves_and_policy_changes_at_once_end_and_agree(aliases: Aliases, database: Database) -> None:
    """Whatever comes first: no deadlock, and every move rests on a receipt under the policy of its time."""
    for source in (STRICT, LAX):
        for adapter, incumbent in ((B, A), (A, B)):
            receipt(database, adapter, incumbent, source=source)
    store(database, "lax", LAX)
    policies, acme = Policies(database), aliases.of("acme")
    receipt(database, B, A, tenant="acme")
    receipt(database, B, A, tenant="acme", source=LAX)

    def act(index: int) -> None:
        for turn in range(4):
            try:
                match index % 3:
                    case 0:
                        aliases.set("prod", Routing.to((B, A)[turn % 2]), ALICE)
                    case 1:
                        policies.assign("alias:prod", ("lax", "strict")[turn % 2], ADMIN)
                    case 2:
                        acme.set("prod", Routing.to(B), ALICE)
            except MensError as error:
                assert error.code in (Code.GATE_STALE, Code.GATE_MISSING), error

    at_once(6, act)
    for move in aliases.history("prod")[:-1]:
        assert move.gate and move.gate["receipts"] and not move.gate["override"]
