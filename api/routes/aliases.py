"""/v1/aliases: where the names that people use point to, who moved them and why, and the way back."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from api.authentication import Caller, CallerDep, requires
from api.openai_types import Deleted
from api.pages import Page, WholeList, page_of
from api.scope import ScopeDep
from api.services import ServicesDep
from shared.aliases import Alias, Move, Mover
from shared.contract import Name
from shared.errors import Code, InvalidRequest
from shared.routing import AdapterId, Routing, Shadow, Target
from shared.tenancy import Role

router = APIRouter(prefix="/v1/aliases", tags=["aliases"])

TRAINER = [requires(Role.TRAINER)]
LARGEST_VERSION = 2**31 - 1
Reason = Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00]*$")]


class PutAlias(BaseModel):
    """Where an alias shall point: to one adapter, or to several by weight."""

    model_config = ConfigDict(extra="forbid")
    adapter: AdapterId | None = Field(
        None, validation_alias=AliasChoices("adapter", "adapter_id"), description="The one adapter that answers."
    )
    targets: Annotated[list[Target], Field(min_length=1, max_length=16)] | None = Field(
        None, description="Or several, by weight."
    )
    shadow: Shadow | None = Field(None, description="An adapter that gets copies of requests; nobody sees its answers.")
    reason: Reason = Field("", description="Why; it is kept in the history.")

    @model_validator(mode="after")
    def _one_of_two(self) -> PutAlias:
        if (self.adapter is None) == (self.targets is None):
            raise ValueError("give either adapter or targets")
        return self

    def routing(self) -> Routing:
        """The same in one form."""
        targets = Routing.to(self.adapter).targets if self.adapter else tuple(self.targets or ())
        return Routing(targets=targets, shadow=self.shadow)


class RollBack(BaseModel):
    """Where an alias shall go back to."""

    model_config = ConfigDict(extra="forbid")
    to_version: int | None = Field(
        None, ge=1, le=LARGEST_VERSION, description="What it was at this version; when null, before its last move."
    )
    reason: Reason = Field("", description="Why; it is kept in the history.")


def expected_version(
    if_match: Annotated[
        str | None, Header(description="The ETag that was seen; when it is old, nothing moves.")
    ] = None,
) -> int | None:
    """The version in If-Match; None when any will do.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``.
    """
    if if_match is None or if_match.strip() == "*":
        return None
    version = if_match.strip().removeprefix("W/").strip('"')
    if not version.isdecimal():
        raise InvalidRequest(Code.REQUEST_INVALID, f"If-Match is {if_match!r}, no ETag of an alias.", param="If-Match")
    return int(version)


ExpectedVersion = Annotated[int | None, Depends(expected_version)]


@router.get("")
def list_aliases(scope: ScopeDep) -> WholeList[Alias]:
    """All aliases."""
    return WholeList(data=scope.aliases.all())


@router.get("/{name}")
def retrieve_alias(name: Name, scope: ScopeDep, response: Response) -> Alias:
    """One alias; its ETag is for If-Match of the moves."""
    return _tagged(response, scope.aliases.get(name))


@router.put("/{name}", dependencies=TRAINER)
def put_alias(
    name: Name,
    body: PutAlias,
    services: ServicesDep,
    scope: ScopeDep,
    caller: CallerDep,
    response: Response,
    expected: ExpectedVersion,
) -> Alias:
    """Point an alias to published adapters of one base; requests that come after this call get them."""
    bases = frozenset(base.name for base in services.catalog().bases)
    by = _mover(caller)
    alias = scope.aliases.set(name, body.routing(), by, body.reason, expected=expected, forbidden=bases)
    return _tagged(response, alias)


@router.post("/{name}/rollback", dependencies=TRAINER)
def roll_back(
    name: Name,
    scope: ScopeDep,
    caller: CallerDep,
    response: Response,
    expected: ExpectedVersion,
    body: RollBack | None = None,
) -> Alias:
    """Move an alias back: to where it was before its last move, or to what it was at a version. A deleted one returns."""
    back = body or RollBack()
    alias = scope.aliases.rollback(name, _mover(caller), back.reason, to_version=back.to_version, expected=expected)
    return _tagged(response, alias)


@router.get("/{name}/history")
def alias_history(
    name: Name,
    scope: ScopeDep,
    before: Annotated[
        int | None, Query(ge=1, le=LARGEST_VERSION, description="Version of the last move of the page before.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Page[Move]:
    """Every move of an alias, newest first: when, who, why, from where, to where."""
    return page_of(scope.aliases.history(name, before=before, limit=limit + 1), limit)


@router.delete("/{name}", dependencies=TRAINER)
def delete_alias(
    name: Name, scope: ScopeDep, caller: CallerDep, expected: ExpectedVersion, reason: Annotated[Reason, Query()] = ""
) -> Deleted:
    """Delete an alias. Its adapters and its history stay, and a rollback brings it back."""
    scope.aliases.delete(name, _mover(caller), reason, expected=expected)
    return Deleted(id=name, object="alias")


def _mover(caller: Caller) -> Mover:
    return Mover(id=caller.key.id, name=caller.key.name)


def _tagged(response: Response, alias: Alias) -> Alias:
    response.headers["ETag"] = f'"{alias.version}"'
    return alias
