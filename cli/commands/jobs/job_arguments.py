"""Arguments that several commands of a job have, and the path of its route."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from cli.client.completion import complete_job
from cli.client.id_prefixes import resolve_job_id
from cli.client.json_errors import note_json

JobId = Annotated[
    str,
    typer.Argument(autocompletion=complete_job, help="Id of the job, or its beginning or end if that is unique."),
]
JobJson = Annotated[
    bool, typer.Option("--json", callback=note_json, help="Print the whole job as JSON; progress goes to stderr.")
]


def job_path(job_id: str) -> str:
    """Return the path of a job's route; any unique part of the id is accepted."""
    return f"/v1/jobs/{quote(resolve_job_id(job_id), safe='')}"
