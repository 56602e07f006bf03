"""A job's adapters and files, recorded before the judging, so that they are kept even if the judging fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from shared.database.adapters import NewAdapter
from shared.database.files.files import add_file
from shared.database.job_states import Stage, Verb
from shared.database.jobs import add_events, transition
from shared.database.records import PARTS_WITH_TEXT, NewEvent
from shared.database.tables.jobs import JobRow
from shared.errors import Code, MensError

CHECKPOINT_TIMES = "checkpoint_times"
"""Key of a fine-tuning job's result: ids of its checkpoints' adapters, with the time of writing (Unix seconds). Their
rows are all created when the job ends.
"""
JUDGED_FOR = "judged_for"
"""Key of a running job's result: the alias that its published adapter is judged for."""


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A file that a job produced and stored, e.g. its metrics."""

    filename: str
    bytes: int
    sha256: str


def complete_result(
    session: Session,
    row: JobRow,
    result: dict[str, Any],
    adapters: Sequence[NewAdapter],
    files: Sequence[ResultFile],
) -> dict[str, Any]:
    """Complete a job's result with the ids of its adapters and files. Repeated publishing adds files only once."""
    stored = row.result.get("result_files") or [
        add_file(session, row.tenant, file.filename, "fine-tune-results", file.bytes, file.sha256).id for file in files
    ]
    return {**result, "result_files": stored, "adapters": [adapter.id for adapter in adapters]}


def outlives(row: JobRow, error: MensError) -> bool:
    """Return whether a job about to fail has achieved its purpose: its adapter is published, and only its judging
    failed.
    """
    is_judging = row.stage == Stage.EVALUATING or error.code == Code.ATTEMPTS_EXHAUSTED
    return JUDGED_FOR in row.result and is_judging


def finish_unjudged(session: Session, row: JobRow, error: MensError, now: datetime) -> None:
    """End a job with success although its published adapter was not judged; its alias is not moved, and the result says
    why.
    """
    kept = dict(row.result)
    alias, adapter = kept.pop(JUDGED_FOR), kept["adapter_id"]
    error_fields = error.as_dict()
    row.result = kept | {"judging_error": error_fields, "alias": {"name": alias, "moved": False, "error": error_fields}}
    remedy = f"Evaluate it: mens receipts create {adapter} --alias {alias}."
    warning = f"{adapter} is published but was not evaluated: {error} {remedy}"
    add_events(session, row, now, NewEvent(level="warn", message=warning, data={"error": error_fields}))
    data = {name: value for name, value in row.result.items() if name not in PARTS_WITH_TEXT}
    message = f"Job succeeded; new adapter {adapter}. The alias {alias} was not moved: the adapter was not evaluated."
    transition(session, row, Verb.FINISH, now, NewEvent(message=message, data=data))
