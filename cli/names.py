"""Names and ids as people type them: a beginning that only one id has stands for it. The API takes whole ids alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cli.connection import fail, find_all

WHOLE_ADAPTER_ID = r"[^@]+@[0-9a-f]{64}"
JOB_ID_CHARS = len("ftjob-") + 26
SHOWN = 10
"""How many ids are listed when several are meant."""


def whole_adapter_id(text: str, least_digits: int = 0, tenant: str | None = None) -> str:
    """The adapter that is meant by an id or by the beginning of one, ``name@`` and digits of its digest; other names, and
    what no adapter begins with, stay as they are. Ends the command when several are meant.

    Args:
        text: what was typed; a trailing ``…`` says only that something was left out.
        least_digits: how many digits of the digest a beginning must have.
        tenant: whose adapters are looked through, as in :func:`cli.connection.call`.
    """
    if "@" not in text or re.fullmatch(WHOLE_ADAPTER_ID, text):
        return text
    typed = text.rstrip("…")
    ids = [adapter["id"] for adapter in find_all("/v1/adapters", tenant)]
    meant = _only_one(typed, [typed] if typed in ids else [known for known in ids if known.startswith(typed)])
    if meant != typed and len(typed.partition("@")[2]) < least_digits:
        fail(f"{text} means {meant}; give the whole id here, or {least_digits} digits of it at least")
    return meant


def whole_job_id(text: str) -> str:
    """The job that is meant by an id or by the beginning of one; what no job begins with stays as it is. Ends the command
    when several are meant.
    """
    typed = text.rstrip("…")
    if not typed.startswith("ftjob-") or len(typed) >= JOB_ID_CHARS:
        return text
    beyond = typed.ljust(JOB_ID_CHARS, "z")  # jobs come from the greatest id on: first those that are meant
    page = find_all("/v1/jobs", after=beyond, limit=SHOWN + 1)
    return _only_one(typed, [job["id"] for job in page if job["id"].startswith(typed)])


def _only_one(typed: str, meant: Sequence[str]) -> str:
    if len(meant) > 1:
        more = ["…"] if len(meant) > SHOWN else []
        lines = "".join(f"\n  {line}" for line in [*meant[:SHOWN], *more])
        fail(f"several ids begin with {typed}; type more of the one that is meant:{lines}")
    return meant[0] if meant else typed
