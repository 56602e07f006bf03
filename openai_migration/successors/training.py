"""Training of planned successors: one job each, which later runs find again; a failed job does not stop the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from openai_migration.archive.folder import make_private, now, safe_name, write_json
from openai_migration.successors.installation import Installation
from openai_migration.successors.planners import with_files
from openai_migration.successors.plans import SuccessorPlan, rows_of
from shared.errors import ArtifactInvalid, Code

TRAIN = "train"
ENDED_WITHOUT = ("failed", "cancelled")


class Training(msgspec.Struct, frozen=True):
    """``train/PROJECT/MODEL/BASE.json``: the job that trains a successor.

    Attributes:
        plan: digest of the contract and the data.
        state: state of the job, as last seen.
        adapter: the adapter's id, once it exists.
        error: code and message if it failed; empty otherwise.
    """

    model: str
    project: str
    base: str
    plan: str
    installation: str
    job: str
    state: str
    adapter: str
    error: str
    seen_at: str
    format: Literal["mens-migration-training/1"] = "mens-migration-training/1"


def submit(folder: Path, installation: Installation, plan: SuccessorPlan, *, retry: bool = False) -> Training:
    """Create the job of a plan, or find the one that an earlier run created.

    Args:
        retry: create another job if the earlier one failed or was cancelled.

    Raises:
        MensError: the job is refused.
        ArtifactInvalid: the rows have changed since the plan was made.
    """
    key, earlier = plan.digest, read_training(folder, plan)
    if earlier and (earlier.plan, earlier.installation) == (plan.digest, installation.connection.url):
        job = installation.find(f"/v1/jobs/{earlier.job}")
        if job and not (retry and job["state"] in ENDED_WITHOUT):
            return _keep(folder, installation, plan, job)
        # The failed job has the plain key; each further one is found through the one before it.
        key = f"{plan.digest}/{earlier.job}"
    contract = with_files(
        plan.contract,
        installation.upload(rows_of(folder, plan.train)),
        installation.upload(rows_of(folder, plan.validation)) if plan.validation else None,
    )
    labels = {"openai_model": plan.model[:512], "openai_job": plan.job}
    body = {"kind": "finetune", "contract": contract, "name": plan.name, "metadata": labels}
    job = installation.call("POST", "/v1/jobs", json=body, headers={"Idempotency-Key": key})
    return _keep(folder, installation, plan, job)


def record(folder: Path, installation: Installation, plan: SuccessorPlan, job: dict[str, Any]) -> Training:
    """Store the state of a job."""
    return _keep(folder, installation, plan, job)


def training_file(project: str, model: str, base: str) -> str:
    """Return the path of a successor's training in the archive."""
    return f"{TRAIN}/{safe_name(project)}/{safe_name(model)}/{safe_name(base)}.json"


def read_training(folder: Path, plan: SuccessorPlan) -> Training | None:
    """Read a plan's training; return None if it was not started.

    Raises:
        ArtifactInvalid: it cannot be read.
    """
    path = folder / training_file(plan.project, plan.model, plan.base)
    return _read(path) if path.is_file() else None


def trainings_of(folder: Path, model: str) -> list[Training]:
    """Return the trainings of a tuned model's successors, on every base.

    Raises:
        ArtifactInvalid: a training cannot be read.
    """
    return [_read(path) for path in sorted((folder / TRAIN).glob(f"*/{safe_name(model)}/*.json"))]


def _keep(folder: Path, installation: Installation, plan: SuccessorPlan, job: dict[str, Any]) -> Training:
    error = job["error"] or {}
    training = Training(
        model=plan.model,
        project=plan.project,
        base=plan.base,
        plan=plan.digest,
        installation=installation.connection.url,
        job=job["id"],
        state=job["state"],
        adapter=job["result"].get("adapter_id") or "",
        error=f"{error['code']}: {error['message']}" if error else "",
        seen_at=now(),
    )
    path = folder / training_file(plan.project, plan.model, plan.base)
    make_private(path.parent, folder)
    write_json(path, training)
    return training


def _read(path: Path) -> Training:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Training)
    except msgspec.DecodeError as error:
        message = f"{path} cannot be read: {error}."
        raise ArtifactInvalid(Code.ARCHIVE_INVALID, message, remedy="Delete it, and run `train` again.") from None
