"""/v1/usage: what was used of which model, by which key, on which day."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Annotated

from fastapi import APIRouter, Query

from api.authentication import Caller, CallerDep
from api.pages import Page, page_of
from api.services import Services, ServicesDep
from shared.errors import Code, Forbidden, InvalidRequest
from shared.tenancy import Role
from shared.usage import GROUPS, Group, Period, UsageLine

router = APIRouter(prefix="/v1/usage", tags=["usage"])

DEFAULT_DAYS = 30
NO_NUL = r"^[^\x00]*$"
"""PostgreSQL takes no text with one."""

From = Annotated[date | None, Query(alias="from", description="First day, UTC; by default 29 days before the last.")]
To = Annotated[date | None, Query(description="Last day, UTC; today by default.")]
GroupBy = Annotated[str, Query(description="What is told apart: some of `day`, `key` and `model`, comma-separated.")]
KeyId = Annotated[str | None, Query(pattern=NO_NUL, description="Only this key's, by its id; a revoked one's, too.")]
Model = Annotated[str | None, Query(pattern=NO_NUL, description="Only of this adapter's id or base's name.")]
After = Annotated[str | None, Query(pattern=NO_NUL, description="Id of the last line of the page before.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="Lines per page.")]


@router.get("")
def usage(
    services: ServicesDep,
    caller: CallerDep,
    from_: From = None,
    to: To = None,
    group_by: GroupBy = "day,key,model",
    key_id: KeyId = None,
    model: Model = None,
    after: After = None,
    limit: Limit = 100,
) -> Page[UsageLine]:
    """Requests and tokens, ordered by day, key and model. An admin sees the tenant's, everybody else the own key's.

    Counts are up to two seconds behind.
    """
    period = _period(from_, to)
    lines = services.usage.lines(
        caller.tenant,
        period,
        _groups(group_by),
        key_id=_whose(services, caller, key_id),
        model=model,
        after=after,
        limit=limit,
    )
    return page_of(lines, limit)


def _period(first: date | None, last: date | None) -> Period:
    last = last or max(datetime.now(UTC).date(), first or date.min)
    first = first or date.fromordinal(max(last.toordinal() - DEFAULT_DAYS + 1, 1))
    if first > last:
        raise InvalidRequest(Code.REQUEST_INVALID, f"`from` ({first}) is later than `to` ({last}).", param="from")
    return Period(first, last)


def _groups(text: str) -> list[Group]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if unknown := [name for name in names if name not in GROUPS]:
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            f"Usage cannot be grouped by {unknown[0]!r}.",
            remedy=f"Take some of {', '.join(GROUPS)}.",
            param="group_by",
        )
    return [group for group in GROUPS if group in names]


def _whose(services: Services, caller: Caller, key_id: str | None) -> str | None:
    """The key to look at; None: all of the tenant."""
    if caller.role.includes(Role.ADMIN):
        return key_id if key_id is None else services.keys.get(key_id, caller.tenant).id
    if key_id not in (None, caller.key.id):
        raise Forbidden(
            Code.ROLE_INSUFFICIENT,
            f"The usage of other keys takes a key with the role {str(Role.ADMIN)!r}; {caller.key.name!r} is a {caller.role}.",
            remedy="Leave `key_id` out for your own key's.",
            param="key_id",
        )
    return caller.key.id
