"""Lists, as OpenAI's clients page through them."""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

from fastapi import Query
from pydantic import BaseModel

Item = TypeVar("Item")

Limit = Annotated[int, Query(ge=1, le=100, description="Items per page.")]
After = Annotated[str | None, Query(pattern=r"^[^\x00]*$", description="Id of the last item of the page before.")]


class Page(BaseModel, Generic[Item]):
    """One page; the next is asked for with the last item: ``after`` its id, or as the route says."""

    object: Literal["list"] = "list"
    data: list[Item]
    has_more: bool


class WholeList(BaseModel, Generic[Item]):
    """A list that is short enough to be given at once."""

    object: Literal["list"] = "list"
    data: list[Item]


def page_of(items: list[Item], limit: int) -> Page[Item]:
    """A page from a query that fetched one item more than it shows."""
    return Page(data=items[:limit], has_more=len(items) > limit)
