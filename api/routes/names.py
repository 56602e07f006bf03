"""/v1/names: names of another provider's models, and what each stands for here."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from api.openai.types import Deleted
from api.routes.aliases import BeforeVersion, ExpectedVersion, MovesLimit, Override, Reason, actor_of, terms_of
from api.services import ServicesDep
from api.web.auth import TRAINER, Caller, CallerDep, check_role
from api.web.params import Page, WholeList, page_of
from api.web.tenant_view import TenantViewDep
from shared.contract.values import ForeignNameText, Name
from shared.database.names.aliases import Move
from shared.database.names.foreign_names import ForeignName
from shared.database.routing import AdapterId, StandsFor
from shared.database.tenancy import Role

router = APIRouter(prefix="/v1/names", tags=["names"])


class PutName(BaseModel):
    """Target of a foreign name: exactly one of an alias, an adapter and a base."""

    model_config = ConfigDict(extra="forbid")
    alias: Name | None = Field(None, description="Name of an alias: the foreign name follows its moves.")
    adapter: AdapterId | None = Field(None, description="Id of a published adapter, for a checkpoint's name.")
    base: str | None = Field(None, max_length=128, description="Name of a base of the catalogue; needs an admin.")
    override: Override = False
    reason: Reason = Field("", description="Reason for the move; kept in the history.")

    @model_validator(mode="after")
    def _one_of_three(self) -> PutName:
        if sum(value is not None for value in (self.alias, self.adapter, self.base)) != 1:
            raise ValueError("set exactly one of alias, adapter and base")
        return self

    def stands_for(self) -> StandsFor:
        """Return the given target."""
        targets: dict[Any, str | None] = {"alias": self.alias, "adapter": self.adapter, "base": self.base}
        return next(StandsFor(kind=kind, name=name) for kind, name in targets.items() if name is not None)


@router.get("")
def list_names(view: TenantViewDep) -> WholeList[ForeignName]:
    """All foreign names of the tenant, and the shared ones."""
    return WholeList(data=view.names.all())


@router.get("/{name}")
def retrieve_name(name: ForeignNameText, view: TenantViewDep, response: Response) -> ForeignName:
    """One foreign name. Its ETag is sent back as If-Match of a move."""
    return _with_etag(response, view.names.get(name))


@router.put("/{name}", dependencies=TRAINER)
def put_name(
    name: ForeignNameText,
    body: PutName,
    services: ServicesDep,
    view: TenantViewDep,
    caller: CallerDep,
    response: Response,
    expected: ExpectedVersion,
) -> ForeignName:
    """Let a name of another provider stand for an alias, an adapter or a base. Requests after this call get it."""
    stands_for = body.stands_for()
    _check_kind(caller, stands_for)
    bases = frozenset(base.name for base in services.catalog().bases)
    if present := view.names.find(name):
        _check_kind(caller, present.stands_for)
    terms = terms_of(services, view, caller, name, overrides=body.override)
    actor = actor_of(caller)
    made = view.names.set(name, stands_for, actor, body.reason, bases=bases, expected=expected, terms=terms)
    return _with_etag(response, made)


@router.get("/{name}/history")
def name_history(
    name: ForeignNameText,
    view: TenantViewDep,
    before: BeforeVersion = None,
    limit: MovesLimit = 100,
) -> Page[Move]:
    """Moves of a foreign name, newest first: when, by whom, why, from where and to where."""
    return page_of(view.names.history(name, before=before, limit=limit + 1), limit)


@router.delete("/{name}", dependencies=TRAINER)
def delete_name(
    name: ForeignNameText,
    services: ServicesDep,
    view: TenantViewDep,
    caller: CallerDep,
    expected: ExpectedVersion,
    reason: Annotated[Reason, Query()] = "",
    override: Annotated[Override, Query()] = False,
) -> Deleted:
    """Delete a foreign name. Its target and its history are kept."""
    _check_kind(caller, view.names.get(name).stands_for)
    terms = terms_of(services, view, caller, name, overrides=override)
    view.names.delete(name, actor_of(caller), reason, expected=expected, terms=terms)
    return Deleted(id=name, object="name")


def _check_kind(caller: Caller, stands_for: StandsFor) -> None:
    """Require an admin for a name of a base, since its target decides which base new jobs train."""
    if stands_for.kind == "base":
        check_role(caller, Role.ADMIN)


def _with_etag(response: Response, name: ForeignName) -> ForeignName:
    response.headers["ETag"] = f'"{name.version}"'
    return name
