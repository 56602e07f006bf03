"""Parameters that several routes have: ids in paths, cursors and limits of lists; and the shapes of lists and pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar

from fastapi import Depends, Header, Path, Query
from pydantic import BaseModel

Item = TypeVar("Item")

NO_NUL = r"^[^\x00]*$"
"""PostgreSQL rejects strings with a NUL character."""
Id = Annotated[str, Path(max_length=256, pattern=r"^[^\x00]+$")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        description="A repeated request with the same key returns the same object.",
    ),
]
Limit = Annotated[int, Query(ge=1, le=100, description="Items per page.")]
After = Annotated[str | None, Query(pattern=NO_NUL, description="Id of the last item of the previous page.")]


Order = Annotated[Literal["asc", "desc"], Query(description="`asc`: the oldest first.")]


@dataclass(frozen=True, slots=True)
class Listing:
    """The requested page of a list, oldest first unless specified otherwise."""

    after: str | None
    limit: int
    newest_first: bool


def listing(after: After = None, limit: Limit = 20, order: Order = "asc") -> Listing:
    """Return the page that a request selects."""
    return Listing(after, limit, order == "desc")


ListingDep = Annotated[Listing, Depends(listing)]


class Identified(Protocol):
    """An object with an id."""

    id: str


class Page(BaseModel, Generic[Item]):
    """One page of a list. The next page is requested with the last item: its id as ``after``, or as the route says."""

    object: Literal["list"] = "list"
    data: list[Item]
    has_more: bool


class IdPage(Page[Item], Generic[Item]):
    """One page of a list, with the ids of its first and last item, as in OpenAI's API."""

    first_id: str | None
    last_id: str | None


class WholeList(BaseModel, Generic[Item]):
    """A whole list, which is short enough to have no pages."""

    object: Literal["list"] = "list"
    data: list[Item]


def page_of(items: Sequence[Item], limit: int) -> Page[Item]:
    """Return a page from a query that fetched one item more than the page shows."""
    return Page(data=list(items[:limit]), has_more=len(items) > limit)


def id_page_fields(items: Sequence[Identified], *, has_more: bool) -> dict[str, Any]:
    """Return the fields of an :class:`IdPage`."""
    first, last = (items[0].id, items[-1].id) if items else (None, None)
    return {"data": items, "has_more": has_more, "first_id": first, "last_id": last}
