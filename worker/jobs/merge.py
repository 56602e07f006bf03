"""The merge job: fetch the adapter, merge in a child process, store the model folder, finish."""

from __future__ import annotations

from shared.artifacts.manifests import MODEL_MANIFEST_NAME
from shared.artifacts.merge_fidelity import FIDELITY_NAME, PROBES_NAME, MergeFidelity
from shared.artifacts.signatures import MERGED_MODEL, sign_folder
from shared.contract.plan import MergeInputs, MergePlan, MergeRun
from shared.database.job_states import Stage
from shared.database.records import NewEvent
from worker.checkpoints.folders import adopt_shards
from worker.jobs.attempt import Attempt
from worker.jobs.child_process import ChildProcess
from worker.run_folder import ADAPTER_FOLDER, MODEL_FOLDER, PLAN_NAME, SUMMARY_NAME, read_json

PROGRAM = "worker.merge"


def run_merge(attempt: Attempt) -> None:
    """Run a merge attempt from claim to success.

    Raises:
        MensError: the attempt failed, with its code.
    """
    plan = MergePlan.model_validate(attempt.lease.job.plan)
    attempt.enter(Stage.PREFLIGHT, f"Checking {plan.adapter_id} and its base {plan.base.name}.")
    adapter = attempt.fetch_adapter(plan.adapter_digest, ADAPTER_FOLDER)
    inputs = MergeInputs(base=str(attempt.locate_base(plan.base)), adapter=str(adapter))
    (attempt.run_dir / PLAN_NAME).write_text(MergeRun(plan=plan, inputs=inputs).model_dump_json(indent=2))
    take_over_shards(attempt)
    attempt.raise_if_stopped()
    attempt.enter(Stage.MERGING, "Merging the adapter into its base, and comparing the two.")
    attempt.follow(ChildProcess(PROGRAM, attempt.run_dir, threads=attempt.settings.trainer_threads or 0))
    store_model(attempt)


def take_over_shards(attempt: Attempt) -> None:
    """Continue where the newest of the earlier attempts was interrupted, if it completed a shard."""
    for run in attempt.earlier_runs():
        if adopt_shards(run, attempt.run_dir):
            return


def store_model(attempt: Attempt) -> None:
    """Sign the merged folder if this installation has a key, store it under its manifest's digest, then mark the job as
    succeeded.
    """
    summary = read_json(attempt.run_dir / SUMMARY_NAME) or {}
    digest = summary["model_digest"]
    folder = attempt.run_dir / MODEL_FOLDER
    names = [*summary["files"], FIDELITY_NAME, PROBES_NAME]
    if attempt.settings.signing_key:
        sign_folder(folder, attempt.settings.signing_key, MERGED_MODEL)
        names.append(MERGED_MODEL.signature_name)
    attempt.storage.put_folder("models", digest, folder, names, MODEL_MANIFEST_NAME)
    result = {key: summary[key] for key in ("model_digest", "adapter_id", "files", "fidelity")}
    warning = MergeFidelity.model_validate(summary["fidelity"]).warning
    # Also sends events that waited for the database.
    attempt.report(events=[NewEvent(level="warn", message=warning)] if warning else [])
    attempt.leases.finish(attempt.lease, result)
