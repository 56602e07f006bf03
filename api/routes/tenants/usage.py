"""/v1/usage: requests and tokens by model, key and day."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BeforeValidator

from api.services import Services, ServicesDep
from api.web.auth import Caller, CallerDep
from api.web.params import NO_NUL, Page, page_of
from shared.database.tenancy import Role
from shared.database.usage import GROUPS, Group, Period, UsageLine
from shared.errors import Code, Forbidden, InvalidRequest

router = APIRouter(prefix="/v1/usage", tags=["usage"])

DEFAULT_DAYS = 30


def _check_day(text: object) -> object:
    if isinstance(text, str) and not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        raise ValueError("a day is written as in 2026-11-30")
    return text


Day = Annotated[date, BeforeValidator(_check_day)]
"""Without the check, pydantic interprets a number as a time in seconds."""
From = Annotated[Day | None, Query(alias="from", description="First day, UTC; by default 29 days before the last.")]
To = Annotated[Day | None, Query(description="Last day, UTC; today by default.")]
GroupBy = Annotated[str, Query(description="Fields to group by: some of `day`, `key` and `model`, comma-separated.")]
KeyId = Annotated[
    str | None, Query(pattern=NO_NUL, description="Only this key's usage, by its id; the key may be revoked.")
]
Model = Annotated[
    str | None, Query(pattern=NO_NUL, description="Only usage of this model: an adapter's id or a base's name.")
]
After = Annotated[str | None, Query(pattern=NO_NUL, description="Id of the last line of the previous page.")]
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
    """Requests and tokens, ordered by day, key and model. An admin gets the tenant's usage, any other key its own.

    Counts lag by up to two seconds.
    """
    last = to or max(datetime.now(UTC).date(), from_ or date.min)
    first = from_ or date.fromordinal(max(last.toordinal() - DEFAULT_DAYS + 1, 1))
    if first > last:
        raise InvalidRequest(Code.REQUEST_INVALID, f"`from` ({first}) is later than `to` ({last}).", param="from")
    lines = services.usage.lines(
        caller.tenant,
        Period(first, last),
        _groups(group_by),
        key_id=_visible_key(services, caller, key_id),
        model=model,
        after=after,
        limit=limit,
    )
    return page_of(lines, limit)


def _groups(text: str) -> list[Group]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if unknown := [name for name in names if name not in GROUPS]:
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            f"Usage cannot be grouped by {unknown[0]!r}.",
            remedy=f"Use some of {', '.join(GROUPS)}.",
            param="group_by",
        )
    return [group for group in GROUPS if group in names]


def _visible_key(services: Services, caller: Caller, key_id: str | None) -> str | None:
    """Return the key whose usage is returned, or None for all keys of the tenant."""
    if caller.role.includes(Role.ADMIN):
        return key_id if key_id is None else services.keys.get(key_id, caller.tenant).id
    if key_id not in (None, caller.key.id):
        raise Forbidden(
            Code.ROLE_INSUFFICIENT,
            f"Reading the usage of other keys needs a key with the role {str(Role.ADMIN)!r}; {caller.key.name!r} is a {caller.role}.",
            remedy="Leave `key_id` out to get the usage of your own key.",
            param="key_id",
        )
    return caller.key.id
