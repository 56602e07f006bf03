"""/v1/aliases: which adapters an alias points to, its moves with actor and reason, and rollback."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StringConstraints,
    model_validator,
)

from api.openai.types import Deleted
from api.services import Services, ServicesDep
from api.web.auth import TRAINER, Caller, CallerDep, check_role
from api.web.params import Page, WholeList, page_of
from api.web.tenant_view import TenantView, TenantViewDep
from shared.contract.values import Name
from shared.database.gates.policies import Author
from shared.database.names.aliases import Actor, Alias, GovernedAlias, Move
from shared.database.names.move_evidence import Terms
from shared.database.routing import AdapterId, Routing, Shadow, Target
from shared.database.tenancy import Role
from shared.errors import Code, InvalidRequest
from shared.evaluation.criteria import check_for_traffic
from shared.evaluation.types import EvalSpec
from shared.hashing import digest_json

router = APIRouter(prefix="/v1/aliases", tags=["aliases"])

# The column is a 32-bit integer: PostgreSQL answers a larger number with an error of the server.
LARGEST_VERSION = 2**31 - 1
Reason = Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00]*$")]


Override = Annotated[
    StrictBool, Field(description="Move without the evidence that the policy requires; needs an admin and a reason.")
]


class PutAlias(BaseModel):
    """New target of an alias: one adapter, or several by weight."""

    model_config = ConfigDict(extra="forbid")
    adapter: AdapterId | None = Field(
        None, validation_alias=AliasChoices("adapter", "adapter_id"), description="The adapter that answers."
    )
    targets: Annotated[list[Target], Field(min_length=1, max_length=16)] | None = Field(
        None, description="Or several adapters, by weight."
    )
    shadow: Shadow | None = Field(
        None, description="An adapter that gets copies of requests; its responses are discarded."
    )
    policy: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        description=(
            "A policy (name or digest) that governs the alias from now on, including this move; null: no change."
        ),
    )
    override: Override = False
    reason: Reason = Field("", description="Reason for the move; kept in the history.")

    @model_validator(mode="after")
    def _one_of_two(self) -> PutAlias:
        if (self.adapter is None) == (self.targets is None):
            raise ValueError("give either adapter or targets")
        return self

    def routing(self) -> Routing:
        """Return the target in the single form that is stored."""
        targets = Routing.to(self.adapter).targets if self.adapter else tuple(self.targets or ())
        return Routing(targets=targets, shadow=self.shadow)


class RollBack(BaseModel):
    """Version that an alias is moved back to."""

    model_config = ConfigDict(extra="forbid")
    to_version: StrictInt | None = Field(
        None,
        ge=1,
        le=LARGEST_VERSION,
        description="Restore the target at this version; null: the target before the last move.",
    )
    reason: Reason = Field("", description="Reason for the move; kept in the history.")


def expected_version(
    if_match: Annotated[
        str | None,
        Header(
            description=(
                "ETag of the alias as last read, or only its version; if the alias has moved since then, the request "
                "is refused."
            )
        ),
    ] = None,
) -> int | None:
    """Return the version in If-Match; None if any version will do.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``.
    """
    if if_match is None or if_match.strip() == "*":
        return None
    version = re.fullmatch(r'(?:W/)?"?([0-9]{1,10})(?:-[0-9a-f]{8})?"?', if_match.strip())
    if version is None or int(version[1]) > LARGEST_VERSION:
        raise InvalidRequest(
            Code.REQUEST_INVALID, f"If-Match is {if_match[:80]!r}, which is not an alias's ETag.", param="If-Match"
        )
    return int(version[1])


ExpectedVersion = Annotated[int | None, Depends(expected_version)]
BeforeVersion = Annotated[
    int | None, Query(ge=1, le=LARGEST_VERSION, description="Version of the last move of the previous page.")
]
MovesLimit = Annotated[int, Query(ge=1, le=1000)]


@router.get("")
def list_aliases(view: TenantViewDep) -> WholeList[GovernedAlias]:
    """All aliases of the tenant, and the shared ones, each with the policy that governs it."""
    return WholeList(data=view.aliases.governed())


@router.get("/{name}")
def retrieve_alias(name: Name, view: TenantViewDep, response: Response) -> GovernedAlias:
    """One alias, with the policy that governs it. Its ETag is sent back as If-Match of a move."""
    (alias,) = view.aliases.governed(name)
    _with_etag(response, alias)
    if alias.governed_by:
        # A different policy changes the ETag; a move compares only the version.
        response.headers["ETag"] = f'"{alias.version}-{digest_json(alias.governed_by.model_dump())[:8]}"'
    return alias


@router.put("/{name}", dependencies=TRAINER)
def put_alias(
    name: Name,
    body: PutAlias,
    services: ServicesDep,
    view: TenantViewDep,
    caller: CallerDep,
    response: Response,
    expected: ExpectedVersion,
) -> Alias:
    """Point an alias to published adapters of one base model. Requests after this call get them."""
    if body.shadow and body.shadow.eval:
        check_for_traffic(EvalSpec.model_validate(view.evals.get(body.shadow.eval).spec))
    alias = view.aliases.set(
        name,
        body.routing(),
        actor_of(caller),
        body.reason,
        expected=expected,
        forbidden=_bases(services),
        terms=terms_of(services, view, caller, name, overrides=body.override),
        policy=(body.policy, author_of(caller)) if body.policy else None,
    )
    return _with_etag(response, alias)


@router.post("/{name}/rollback", dependencies=TRAINER)
def roll_back(
    name: Name,
    services: ServicesDep,
    view: TenantViewDep,
    caller: CallerDep,
    response: Response,
    expected: ExpectedVersion,
    body: RollBack | None = None,
) -> Alias:
    """Move an alias back to the target that it had before its last move, or at a version. A deleted alias is restored."""
    body = body or RollBack()
    alias = view.aliases.rollback(
        name,
        actor_of(caller),
        body.reason,
        to_version=body.to_version,
        expected=expected,
        forbidden=_bases(services),
    )
    return _with_etag(response, alias)


@router.get("/{name}/history")
def alias_history(
    name: Name,
    view: TenantViewDep,
    before: BeforeVersion = None,
    limit: MovesLimit = 100,
) -> Page[Move]:
    """Moves of an alias, newest first: when, by whom, why, from where and to where."""
    return page_of(view.aliases.history(name, before=before, limit=limit + 1), limit)


@router.delete("/{name}", dependencies=TRAINER)
def delete_alias(
    name: Name,
    services: ServicesDep,
    view: TenantViewDep,
    caller: CallerDep,
    expected: ExpectedVersion,
    reason: Annotated[Reason, Query()] = "",
    override: Annotated[Override, Query()] = False,
) -> Deleted:
    """Delete an alias. Its adapters and its history are kept, and a rollback restores it."""
    terms = terms_of(services, view, caller, name, overrides=override)
    view.aliases.delete(name, actor_of(caller), reason, expected=expected, terms=terms)
    return Deleted(id=name, object="alias")


def actor_of(caller: Caller) -> Actor:
    """Return the caller's key, for the history."""
    return Actor(id=caller.key.id, name=caller.key.name)


def author_of(caller: Caller) -> Author:
    """Return the caller's key, as recorded for policy changes, and whether it may change assignments."""
    return Author(id=caller.key.id, name=caller.key.name, is_admin=caller.role.includes(Role.ADMIN))


def terms_of(services: Services, view: TenantView, caller: Caller, name: str, *, overrides: bool) -> Terms:
    """Return the caller's terms for moving an alias: whether it overrides the policy, and the bases that are served
    now.
    """
    if overrides:
        check_role(caller, Role.ADMIN)
    # The replicas are queried only if a policy governs the alias, because waiting for an unavailable replica takes
    # seconds.
    return Terms(overrides, services.replica_limits.served() if view.aliases.governing(name).policy else None)


def _bases(services: Services) -> frozenset[str]:
    """Return the names that no alias may have."""
    return frozenset(base.name for base in services.catalog().bases)


def _with_etag(response: Response, alias: Alias) -> Alias:
    response.headers["ETag"] = f'"{alias.version}"'
    return alias
