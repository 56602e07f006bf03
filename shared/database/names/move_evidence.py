"""Check that a move has the evidence that its policy requires, in the transaction that moves.

An adapter whose share of a name's answers grows needs a receipt: for exactly its bytes, under the current policy, on
the base that is served now, against the adapter that answers now, and not too old. If several receipts fit, the newest
is used. The adapter with most of the answers needs no receipt, and a shadow's answers reach no caller.

    standing()  the current answer to the name, and the policies that might govern it; locks their rows
    check()     refuses a move without evidence; no policy changes until the transaction ends
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from shared.database.change_counter import hold_policies
from shared.database.gates.policies import ALIAS_PREFIX, SERVER_SCOPE, TENANT_SCOPE, Assignment, first_assignment
from shared.database.gates.receipts import StoredReceipt, receipts_of
from shared.database.names.alias_states import state_of
from shared.database.routing import Routing, StandsFor
from shared.database.tables.adapters import AdapterRow
from shared.database.tables.names import AliasMoveRow, AliasRow
from shared.database.tenancy import SHARED, visible_to
from shared.database.visibility import adapter_row, alias_rows, foreign_name_rows
from shared.errors import Code, Conflict, InvalidRequest
from shared.gate_outcome import GateStatus, overall_outcome

TOLERANCE = 1e-9
"""Tolerance for comparing shares, which are quotients of weights: an unchanged share may differ in its last digits."""


@dataclass(frozen=True)
class Terms:
    """The caller's terms for a move.

    Attributes:
        overrides: an admin moves without evidence; the reason is kept in the history.
        served: digests of the bases that replicas serve now; None: not known.
    """

    overrides: bool = False
    served: frozenset[str] | None = None


WITH_EVIDENCE = Terms()


@dataclass(frozen=True)
class Standing:
    """State of a name before a move.

    Attributes:
        answering: the adapters that answer for it now, as its tenant sees it; None: nothing, or a base.
        incumbent: adapter to compare a new one with: the one with most of the answers, or the last that had them.
        scopes: the tenants and scopes at which a policy that governs it may be assigned, the nearest first.
        own_scopes: the scopes that govern it whatever its target is.
        state: state of its own row.
    """

    tenant: str
    name: str
    answering: Routing | None
    incumbent: AdapterRow | None
    scopes: tuple[tuple[str, str], ...]
    own_scopes: tuple[tuple[str, str], ...]
    state: Routing | StandsFor | None


def standing(session: Session, row: AliasRow) -> Standing:
    """Read the state of a name before a move; the caller's transaction has locked ``row``, and no adapter yet."""
    tenants = visible_to(row.tenant)
    others = [tenant for tenant in tenants if tenant != row.tenant]
    # The policy of a hidden name still applies: else it would only govern the first move.
    hidden = [*alias_rows(session, others, row.name), *foreign_name_rows(session, others, row.name)][:1]
    own = state = state_of(row)
    if state is None and hidden:
        state = _hold(session, hidden[0])
    followed: list[AliasRow] = []
    if isinstance(state, StandsFor) and state.kind == "alias":
        followed = alias_rows(session, tenants, state.name)
        state = _hold(session, followed[0]) if followed else None
    answering = _routing(state)
    mains = [answering.main] if answering else _past_mains(session, row)
    return Standing(
        tenant=row.tenant,
        name=row.name,
        answering=answering,
        incumbent=next((adapter for main in mains if (adapter := _published(session, tenants, main))), None),
        scopes=scopes_of(row, *hidden, *followed),
        own_scopes=scopes_of(row, *hidden),
        state=own,
    )


def governing(session: Session, before: Standing) -> Assignment | None:
    """Return the assignment of the policy that governs a name; None if no policy does."""
    return first_assignment(session, before.scopes)


def check(
    session: Session,
    before: Standing,
    after: Routing | StandsFor | None,
    terms: Terms,
    reason: str,
    now: datetime,
    through: AliasRow | None = None,
    *,
    deletes: bool = False,
) -> dict[str, Any] | None:
    """Refuse a move without evidence, and a move after which further moves would need none.

    Args:
        before: state of the name now.
        after: its state after the move.
        terms: the caller's terms.
        reason: the move's reason.
        now: the time by the database's clock.
        through: another name that will answer for it. If the same policy governs that name, no further evidence is
            required.
        deletes: whether ``after`` is the state that remains once this tenant's name is deleted.

    Returns:
        the basis of the move, for its line in the history: the policy, and the receipts or the override; None when no
            policy governs, or no adapter gets a larger share of the answers.

    Raises:
        Conflict: ``GATE_MISSING``: no receipt, or the policy would no longer govern it; ``GATE_STALE``: no receipt fits
            the current state; ``GATE_FAILED``.
        InvalidRequest: ``REQUEST_INVALID``: an override without a reason.
    """
    hold_policies(session)
    assignment = governing(session, before)
    if assignment is None:
        return None
    leaves = _leaves_policy(session, before, None if deletes else after, assignment)
    if isinstance(after, StandsFor) and after.kind == "alias":
        followed = next(iter(alias_rows(session, visible_to(before.tenant), after.name)), None)
        after = state_of(followed) if followed else None
        # The answers of another alias were never compared with this alias's current answers.
        through = followed if before.incumbent is None else None
    elsewhere = first_assignment(session, scopes_of(through)) if through else None
    if elsewhere and elsewhere.policy.digest == assignment.policy.digest and not leaves:
        return None
    growing = _growing(session, before, after)
    if not growing and not leaves:
        return None
    kept: dict[str, Any] = {"policy": assignment.policy.model_dump()}
    if terms.overrides:
        if not reason.strip():
            raise InvalidRequest(
                Code.REQUEST_INVALID,
                "An override needs a reason.",
                remedy="Send reason; it is kept in the history.",
                param="reason",
            )
        return kept | {"override": True, "receipts": []}
    if leaves:
        raise _ungoverned(before, assignment, leaves)
    receipts = [_receipt(session, before, assignment, adapter, terms, now) for adapter in growing]
    return kept | {"override": False, "receipts": [receipt.id for receipt in receipts]}


def _leaves_policy(
    session: Session, before: Standing, after: Routing | StandsFor | None, assignment: Assignment
) -> str | None:
    """Return the name that needs an assignment so that the policy still governs the answers; None if it already does.

    A policy may govern the target of a name but not the name itself. Then a move that needs no evidence would escape
    the policy: for example a move to the adapter that already answers, or deleting the name. An alias that the name
    follows must have the policy itself, because it can be moved on its own.
    """
    if after is not None and after == before.state:
        return None
    scopes, name = before.own_scopes, before.name
    if isinstance(after, StandsFor) and after.kind == "alias":
        scopes, name = scopes_of(*alias_rows(session, visible_to(before.tenant), after.name)), after.name
    then = first_assignment(session, scopes)
    return None if then and then.policy.digest == assignment.policy.digest else name


def _growing(session: Session, before: Standing, after: Routing | StandsFor | None) -> list[AdapterRow]:
    """Return the adapters whose share of the answers grows, except the one that already has most of them."""
    routing = _routing(after)
    if routing is None:
        return []
    present = _shares(before.answering) if before.answering else {}
    incumbent = before.incumbent.id if before.incumbent else None
    grown = [
        adapter_id
        for adapter_id, share in _shares(routing).items()
        if share > present.get(adapter_id, 0.0) + TOLERANCE and adapter_id != incumbent
    ]
    rows = (adapter_row(session, visible_to(before.tenant), adapter_id) for adapter_id in grown)
    return [row for row in rows if row is not None]


def scopes_of(*rows: AliasRow) -> tuple[tuple[str, str], ...]:
    """Return the scopes where a policy of these names may be assigned: each name, the tenant of each, the server."""
    tenants = dict.fromkeys(row.tenant for row in rows)
    own = ((row.tenant, ALIAS_PREFIX + row.name) for row in rows)
    return (*own, *((tenant, TENANT_SCOPE) for tenant in tenants), (SHARED, SERVER_SCOPE))


def _receipt(
    session: Session, before: Standing, assignment: Assignment, adapter: AdapterRow, terms: Terms, now: datetime
) -> StoredReceipt:
    """Return the receipt that allows an adapter to answer."""
    policy = assignment.policy
    receipts = receipts_of(session, before.tenant, adapter.id, adapter.digest, policy.digest)
    if not receipts:
        raise _refused(
            Code.GATE_MISSING,
            before,
            assignment,
            adapter,
            f"{before.name!r} is governed by the policy {policy.name} ({policy.digest[:12]}), and {adapter.id} has "
            "no receipt under that policy.",
        )
    misfits = [(receipt, _misfit(receipt, before, terms)) for receipt in receipts]
    receipt = next((receipt for receipt, misfit in misfits if misfit is None), None)
    if receipt is None:
        newest, misfit = misfits[0]
        raise _refused(
            Code.GATE_STALE, before, assignment, adapter, f"The receipt {newest.id} of {adapter.id} {misfit}.", newest
        )
    if not receipt.passed:
        rows = [row for row in receipt.receipt.get("gates", []) if row["block"] and not row["passed"]]
        failures = "; ".join(f"{row['name']} {GateStatus(row['status']).word}: {row['message']}" for row in rows)
        outcome = overall_outcome(receipt.passed, rows).word
        raise _refused(
            Code.GATE_FAILED,
            before,
            assignment,
            adapter,
            f"{adapter.id}: {outcome} under the policy {policy.name} ({policy.digest[:12]}), {receipt.id}: {failures}.",
            receipt,
        )
    if receipt.valid_until <= now:
        raise _refused(
            Code.GATE_STALE,
            before,
            assignment,
            adapter,
            f"The receipt {receipt.id} of {adapter.id} was valid until {receipt.valid_until:%Y-%m-%d %H:%M} UTC.",
            receipt,
        )
    return receipt


def _misfit(receipt: StoredReceipt, before: Standing, terms: Terms) -> str | None:
    """Return why a receipt does not fit the current state; None when it fits."""
    incumbent = before.incumbent
    present = (incumbent.id, incumbent.digest) if incumbent else (None, None)
    if (receipt.incumbent_id, receipt.incumbent_digest) != present:
        was = receipt.incumbent_id or "the base"
        return f"compares it with {was}, but {incumbent.id if incumbent else 'no adapter'} answers for {before.name!r}"
    if terms.served is not None and receipt.serving_digest not in terms.served:
        return "was made with a base that differs from the one served now"
    return None


def _refused(
    code: Code,
    before: Standing,
    assignment: Assignment,
    adapter: AdapterRow,
    message: str,
    receipt: StoredReceipt | None = None,
) -> Conflict:
    rows = receipt.receipt.get("gates", []) if receipt else []
    remedy = f"Evaluate it: POST /v1/receipts with adapter {adapter.id!r} and alias {before.name!r}."
    if code is Code.GATE_FAILED:
        remedy = (
            f"Read every gate with GET /v1/receipts/{receipt.id if receipt else ''}, or ask an admin to override the "
            "policy with a reason."
        )
    return Conflict(
        code,
        message,
        remedy=remedy,
        param="adapter",
        details={
            "alias": before.name,
            "adapter": adapter.id,
            "incumbent": before.incumbent.id if before.incumbent else None,
            "policy": assignment.policy.model_dump(),
            "scope": assignment.scope,
            "receipt": receipt.id if receipt else None,
            "gates": [row for row in rows if not row["passed"]],
        },
    )


def _ungoverned(before: Standing, assignment: Assignment, name: str) -> Conflict:
    policy = assignment.policy
    return Conflict(
        Code.GATE_MISSING,
        f"{before.name!r} is governed by the policy {policy.name} ({policy.digest[:12]}), but would no longer be after "
        f"this move.",
        remedy=(
            f"Assign it to {name!r} first: PUT /v1/policy_assignments/{ALIAS_PREFIX}{name}. Or ask an admin to "
            "override the policy with a reason."
        ),
        param="policy",
        details={"alias": before.name, "policy": policy.model_dump(), "scope": assignment.scope},
    )


def _hold(session: Session, row: AliasRow) -> Routing | StandsFor | None:
    """Return the state of another name's row, locked until the transaction ends."""
    # A shared lock, as many names may follow this one. Read again, because it may have changed before the lock.
    held = session.get_one(AliasRow, (row.tenant, row.name), with_for_update={"read": True}, populate_existing=True)
    return state_of(held)


def _routing(state: Routing | StandsFor | None) -> Routing | None:
    if isinstance(state, StandsFor):
        return Routing.to(state.name) if state.kind == "adapter" else None
    return state


def _shares(routing: Routing) -> dict[str, float]:
    total = sum(target.weight for target in routing.targets)
    return {target.adapter: target.weight / total for target in routing.targets}


def _past_mains(session: Session, row: AliasRow) -> Iterator[str]:
    """Iterate over the adapters that answered before an alias was deleted, the last one first.

    With them, a caller cannot avoid the comparison by deleting the alias, or also its last adapter.
    """
    query = select(AliasMoveRow).where(AliasMoveRow.tenant == row.tenant, AliasMoveRow.alias == row.name)
    for move in session.scalars(query.order_by(AliasMoveRow.version.desc()).limit(100)):
        if move.after and "targets" in move.after:
            yield Routing.model_validate(move.after).main
        elif move.after and move.after.get("kind") == "adapter":
            yield str(move.after["name"])


def _published(session: Session, tenants: Sequence[str], adapter_id: str) -> AdapterRow | None:
    row = adapter_row(session, tenants, adapter_id)
    return row if row is not None and row.published else None
