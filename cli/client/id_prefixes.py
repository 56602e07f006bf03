"""Shortened ids: a prefix that only one id has stands for it. The API accepts only full ids."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cli.client.connection import fail, find_all
from shared.errors import Code, Conflict

WHOLE_ADAPTER_ID = r"[^@]+@[0-9a-f]{64}"
JOB_ID_CHARS = len("ftjob-") + 26
LISTED_IDS = 10
"""Number of ids listed if several have the prefix."""


def resolve_adapter_id(text: str, least_digits: int = 0, tenant: str | None = None) -> str:
    """Return the adapter id for an id or its prefix, ``name@`` and digits of its digest; other names, and a prefix that
    no adapter has, are returned unchanged. End the command if several adapters have the prefix.

    Args:
        text: the user's input; a trailing ``…`` only marks an omission.
        least_digits: fewest digits of the digest that a prefix must have.
        tenant: the tenant whose adapters are searched, as in :func:`cli.client.connection.call`.
    """
    if "@" not in text or re.fullmatch(WHOLE_ADAPTER_ID, text):
        return text
    typed = text.rstrip("…")
    ids = [adapter["id"] for adapter in find_all("/v1/adapters", tenant)]
    # An id that is the prefix of another one stands for itself.
    found = _require_one(typed, [typed] if typed in ids else [each for each in ids if each.startswith(typed)])
    if found != typed and len(typed.partition("@")[2]) < least_digits:
        fail(f"{text} means {found}; give the whole id here, or {least_digits} digits of it at least")
    return found


def resolve_job_id(text: str) -> str:
    """Return the job id for an id or its prefix; a prefix that no job has is returned unchanged. End the command if
    several jobs have the prefix.
    """
    typed = text.rstrip("…")
    if not typed.startswith("ftjob-") or len(typed) >= JOB_ID_CHARS:
        return text
    # Jobs are listed from the greatest id down, so a page that begins after the prefix filled up with the last letter,
    # once more than an id has, begins with the jobs that have the prefix.
    page = find_all("/v1/jobs", after=typed.ljust(JOB_ID_CHARS + 1, "z"), limit=LISTED_IDS + 1)
    return _require_one(typed, [job["id"] for job in page if job["id"].startswith(typed)])


def _require_one(typed: str, found: Sequence[str]) -> str:
    """Return the only id that was found, or the input if none was; end the command with a list if there are several."""
    if len(found) > 1:
        listed, more = found[:LISTED_IDS], ["…"] if len(found) > LISTED_IDS else []
        several = f"Several ids begin with {typed}."
        error = Conflict(
            Code.ID_AMBIGUOUS, several, remedy="Type more of the one you mean.", details={"ids": list(listed)}
        )
        fail("\n  ".join([str(error), *listed, *more]), error.as_dict())
    return found[0] if found else typed
