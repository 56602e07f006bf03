"""/v1/policies: requirements for adapters; /v1/policy_assignments: the policy that governs an alias, a tenant or the
server.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from api.alias_policy import find_hopeless
from api.openai.types import Deleted
from api.routes.aliases import BeforeVersion, MovesLimit, Reason, author_of
from api.services import Services, ServicesDep
from api.web.auth import TRAINER, CallerDep, check_role, requires
from api.web.params import Id, Page, WholeList, page_of
from api.web.tenant_view import TenantView, TenantViewDep
from shared.database.gates.policies import ALIAS_PREFIX, Assignment, PolicyMove, StoredPolicy
from shared.database.tenancy import Role
from shared.errors import Code, NotFound
from shared.gates.policy import GatePolicy
from shared.gates.policy_file import MAX_BYTES, policy_digest, read_policy

router = APIRouter(prefix="/v1", tags=["policies"])
ADMIN = [requires(Role.ADMIN)]

PolicyNameText = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Scope = Annotated[str, Path(max_length=300, pattern=r"^(alias:[^\x00]+|tenant|server)$")]


class StorePolicy(BaseModel):
    """A policy file and the name to store it under."""

    model_config = ConfigDict(extra="forbid")
    name: PolicyNameText = Field(description="Letters, digits, `.`, `_` and `-`, at most 64.")
    source: str = Field(max_length=MAX_BYTES, description="Content of the file: YAML or JSON.")


class CheckPolicy(BaseModel):
    """A policy file that is read and not stored."""

    model_config = ConfigDict(extra="forbid")
    source: str = Field(max_length=MAX_BYTES, description="The file.")


class CheckedPolicy(BaseModel):
    """A policy with every default filled in."""

    digest: str
    policy: dict[str, object]


class StoredPolicyAnswer(StoredPolicy):
    """A stored policy, and its gates that cannot pass."""

    notes: list[str] = Field([], description="Gates that no adapter can pass, and why.")


class AssignmentAnswer(Assignment):
    """An assignment, and the policy's gates that cannot pass."""

    notes: list[str] = Field([], description="Gates that no adapter can pass, and why.")


class AssignPolicy(BaseModel):
    """Policy that governs from now on."""

    model_config = ConfigDict(extra="forbid")
    policy: str = Field(
        min_length=1, max_length=64, description="Name of a policy, for its newest version, or its digest."
    )
    reason: Reason = Field("", description="Reason for the change; kept in the history.")


@router.get("/policies")
def list_policies(view: TenantViewDep) -> WholeList[StoredPolicy]:
    """All policies of the tenant, and the shared ones; for each name, the newest first."""
    return WholeList(data=view.policies.all())


@router.post("/policies", dependencies=TRAINER)
def store_policy(
    body: StorePolicy, services: ServicesDep, view: TenantViewDep, caller: CallerDep
) -> StoredPolicyAnswer:
    """Store a policy. It governs nothing until it is assigned; older policies of its name keep their assignments."""
    policy = read_policy(body.source)
    fields = policy.model_dump(mode="json")
    stored = view.policies.store(body.name, policy_digest(policy), fields, body.source, author_of(caller))
    return StoredPolicyAnswer(**dict(stored), notes=_notes(services, view, policy))


@router.post("/policies:check")
def check_policy(body: CheckPolicy) -> CheckedPolicy:
    """Read a policy file without storing it; returns it with every default filled in."""
    policy = read_policy(body.source)
    return CheckedPolicy(digest=policy_digest(policy), policy=policy.model_dump(mode="json"))


@router.get("/policies/{name}")
def retrieve_policy(name: Id, view: TenantViewDep) -> StoredPolicy:
    """A policy by its name, which means the newest of that name, or by its digest."""
    return view.policies.get(name)


@router.get("/policy_assignments")
def list_policy_assignments(view: TenantViewDep) -> WholeList[Assignment]:
    """List the assignments of policies: to aliases, the tenant and the server."""
    return WholeList(data=view.policies.assignments())


@router.put("/policy_assignments/{scope}", dependencies=TRAINER)
def assign_policy(
    scope: Scope, body: AssignPolicy, services: ServicesDep, view: TenantViewDep, caller: CallerDep
) -> AssignmentAnswer:
    """Let a policy govern `alias:NAME`, the `tenant`, or the `server`.

    A trainer may do so for an alias that no policy governs; everything else, and every later change, needs an admin.
    """
    if not scope.startswith(ALIAS_PREFIX):
        check_role(caller, Role.ADMIN)
    assigned = view.policies.assign(scope, body.policy, author_of(caller), body.reason)
    assert assigned, "a policy was named"
    policy = GatePolicy.model_validate(view.policies.exactly(assigned.policy).policy)
    return AssignmentAnswer(**dict(assigned), notes=_notes(services, view, policy))


@router.delete("/policy_assignments/{scope}", dependencies=ADMIN)
def remove_policy_assignment(
    scope: Scope, view: TenantViewDep, caller: CallerDep, reason: Annotated[Reason, Query()] = ""
) -> Deleted:
    """Remove the policy of an alias, the tenant or the server. The history keeps the assignment."""
    if not any(
        (assignment.tenant, assignment.scope) == (caller.tenant, scope) for assignment in view.policies.assignments()
    ):
        raise NotFound(
            Code.POLICY_NOT_FOUND,
            f"No policy is assigned to {scope}.",
            remedy="List the assignments with GET /v1/policy_assignments.",
            param="scope",
        )
    view.policies.assign(scope, None, author_of(caller), reason)
    return Deleted(id=scope, object="policy_assignment")


@router.get("/policy_assignments/{scope}/history")
def policy_assignment_history(
    scope: Scope, view: TenantViewDep, before: BeforeVersion = None, limit: MovesLimit = 100
) -> Page[PolicyMove]:
    """Changes of assignments, newest first: when, by whom, why, from which policy to which."""
    return page_of(view.policies.history(scope, before=before, limit=limit + 1), limit)


def _notes(services: Services, view: TenantView, policy: GatePolicy) -> list[str]:
    return [gate.describe() for gate in find_hopeless(services, view, policy)]
