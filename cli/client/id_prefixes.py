"""Shortened ids: any unique part of an id stands for the id. The API accepts only full ids.

A part is the id's beginning or its end, ``ftjob-01m8`` or ``3fk2a8``, or both with ``…`` between them, as tables show it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from cli.client.connection import PAGE, fail, find, find_all, find_pages
from cli.output import LEFT_OUT
from shared.errors import Code, Conflict

WHOLE_ADAPTER_ID = r"[^@]+@[0-9a-f]{64}"
DIGITS = re.compile(r"[0-9a-f]{6,63}")
"""Digits of an adapter's digest that are accepted without its name."""
ULID_CHARS = 26
LEAST_CHARS = 3
"""Fewest characters that are searched as the end of an id."""
LISTED_IDS = 10
"""Number of ids listed if several match."""


@dataclass(frozen=True)
class RowIds:
    """Ids of rows of one kind, and the list that contains them, with the greatest id first.

    Attributes:
        prefix: the prefix of all ids.
        path: route of the list.
        query: parameters of every page.
        search: parameter for a part of the id; without one, all pages are read.
        by_id: whether the list is ordered by id, and its pages may begin after any id.
    """

    prefix: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    search: str | None = None
    by_id: bool = True

    @property
    def length(self) -> int:
        """Characters of an id."""
        return len(self.prefix) + ULID_CHARS

    def resolve(self, text: str) -> str:
        """Return the id that a part stands for; a part that matches no id is returned unchanged. End the command if
        several ids match.
        """
        part = Part.of(text)
        if self._is_whole(text, part):
            return text
        if self.by_id and part.start.startswith(self.prefix) and not part.end:
            return _require_one(text, self._from(part.start))
        return self.among(text, self._containing(part))

    def among(self, text: str, ids: Iterable[str]) -> str:
        """Return the id among the given ones that a part stands for, like :meth:`resolve`; the ids are read only if
        necessary.
        """
        part = Part.of(text)
        if self._is_whole(text, part):
            return text
        return _require_one(text, (row_id for row_id in ids if part.fits(row_id, self.prefix)))

    def _is_whole(self, text: str, part: Part) -> bool:
        return part.is_typed_whole and (len(text) >= self.length or not self._is_part(text))

    def _is_part(self, text: str) -> bool:
        return text.startswith(self.prefix) or (len(text) >= LEAST_CHARS and text.isalnum())

    def _from(self, start: str) -> list[str]:
        """Return the ids that begin with the part, a few more than are listed."""
        # The list begins with the greatest id. The part padded with the last letter, to one more character than an id
        # has, is greater than all ids that begin with the part, so the page after it begins with them.
        after = start.ljust(self.length + 1, "z")
        page = find_all(self.path, **self.query, after=after, limit=LISTED_IDS + 1)
        return [row["id"] for row in page if row["id"].startswith(start)]

    def _containing(self, part: Part) -> Iterable[str]:
        if self.search is None:
            return (row["id"] for row in find_pages(self.path, **self.query))
        # Only one page is read: the search also matches other fields, and the user can easily type more of the id.
        rows = find_all(self.path, **self.query, limit=PAGE, **{self.search: part.end or part.start})
        return (row["id"] for row in rows)


JOBS = RowIds("ftjob-", "/v1/jobs", query={"view": "summary"}, search="q")
FILES = RowIds("file-", "/v1/files", query={"order": "desc"})
RECEIPTS = RowIds("receipt-", "/v1/receipts")
EVALS = RowIds("eval-", "/v1/evals", query={"order": "desc"}, by_id=False)
EVAL_RUNS = RowIds("evalrun-", "/v1/evals")
"""Runs that judge an adapter; other runs have the ids of their jobs."""
WEBHOOKS = RowIds("webhook-", "/v1/webhook_endpoints")
KEYS = RowIds("key-", "/v1/keys")


@dataclass(frozen=True)
class Part:
    """A part of an id as it was typed: its beginning, its end, or both; alone, the beginning may also be the end."""

    start: str
    end: str
    is_typed_whole: bool

    @classmethod
    def of(cls, text: str) -> Part:
        """Parse a part from a string, in which ``…`` or ``...`` marks an omission."""
        start, omission, end = text.replace("...", LEFT_OUT).partition(LEFT_OUT)
        return cls(start, end, not omission)

    def fits(self, whole: str, prefix: str) -> bool:
        """Return whether an id has this part; its beginning may be typed with or without the id's prefix."""
        if self.end:
            return whole.startswith(self.start) and whole.endswith(self.end)
        return whole.startswith((self.start, prefix + self.start)) or whole.endswith(self.start)


def resolve_job_id(text: str) -> str:
    """Return the job id for an id or a part of it; see :meth:`RowIds.resolve`."""
    return JOBS.resolve(text)


def resolve_adapter_id(text: str, least_digits: int = 0, tenant: str | None = None) -> str:
    """Return the adapter id for an id or a part of it: ``name@`` and digits of its digest, or six digits or more alone;
    other names, and a part that matches no adapter, are returned unchanged. End the command if several adapters match.

    Args:
        text: the user's input.
        least_digits: fewest digits of the digest that a part must have.
        tenant: the tenant whose adapters are searched, as in :func:`cli.client.connection.call`.
    """
    part = Part.of(text)
    _, at, start = part.start.partition("@")
    is_digits = not at and DIGITS.fullmatch(part.start + part.end)
    if re.fullmatch(WHOLE_ADAPTER_ID, text) or not (at or is_digits) or (is_digits and _is_model(text, tenant)):
        return text
    ids = [adapter["id"] for adapter in find_all("/v1/adapters", tenant, q=part.end or part.start, limit=PAGE)]
    # An id that is the beginning of another one stands for itself.
    matching = (
        [text]
        if text in ids
        else [adapter_id for adapter_id in ids if part.fits(adapter_id, f"{adapter_id.partition('@')[0]}@")]
    )
    resolved = _require_one(text, matching)
    digits = (start if at else part.start) + part.end
    if resolved != text and len(digits) < least_digits:
        fail(f"{text} matches {resolved}; give the whole id here, or at least {least_digits} of its digits")
    return resolved


def _is_model(name: str, tenant: str | None) -> bool:
    """Return whether a base or an alias has this name, which then stands for itself."""
    return find(f"/v1/models/{name}", tenant) is not None


def _require_one(typed: str, matching: Iterable[str]) -> str:
    """Return the only id that was found, or the input if none was; end the command with a list if there are several."""
    ids: Sequence[str] = list(islice(matching, LISTED_IDS + 1))
    if len(ids) > 1:
        listed, more = ids[:LISTED_IDS], [LEFT_OUT] if len(ids) > LISTED_IDS else []
        several = f"{typed} is a part of several ids."
        error = Conflict(
            Code.ID_AMBIGUOUS, several, remedy="Type more characters of the id.", details={"ids": list(listed)}
        )
        fail("\n  ".join([str(error), *listed, *more]), error.as_dict())
    return ids[0] if ids else typed
