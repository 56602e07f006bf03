"""The import job: an adapter made by another program is converted, stored, measured like any other adapter, and
registered.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shared.artifacts.adapter_import import import_adapter, parse_description
from shared.artifacts.imported_folder import Imported, ImportRequest
from shared.artifacts.manifests import MANIFEST_NAME
from shared.artifacts.original_layout import MAX_SIDECAR_BYTES
from shared.base_models.catalog import BaseModelEntry, LocalSource
from shared.contract.plan import ImportPlan
from shared.contract.sections import DeviceSection
from shared.database.job_states import Stage
from shared.database.records import NewEvent
from shared.errors import Code, InvalidRequest, JobFailed
from shared.hashing import digest_file
from shared.tokenization.template_arguments import ChatOptions
from shared.tokenization.tokenizer import Tokenizer
from worker.checkpoints.adapters import sign_adapters, store_adapter
from worker.jobs.attempt import Attempt
from worker.jobs.child_process import ChildProcess
from worker.jobs.finetune import publish_adapter
from worker.jobs.judge import judge_for_alias
from worker.probe_chats import encode_chats
from worker.run_folder import ADAPTER_FOLDER, PLAN_NAME, PROBES_NAME, TemplateCheck, write_json

MAX_PROBE_TOKENS = 256
WEIGHTS_FIELD = "weights_file"
TEMPLATE_PROGRAM, TEMPLATE_FOLDER = "worker.bases.template_check", "template"


def run_import(attempt: Attempt) -> None:
    """Run an import attempt from claim to success.

    Raises:
        MensError: the attempt failed, with its code.
        LeaseLost, Stopped: see `worker/jobs/attempt.py`.
    """
    plan = ImportPlan.model_validate(attempt.lease.job.plan)
    attempt.enter(Stage.PREFLIGHT, f"Checking the adapter against the base {plan.base.name}.")
    base = attempt.locate_base(plan.base)
    imported = convert(attempt, plan, base)
    attempt.report(events=[NewEvent(level="warn", message=note) for note in imported.notes])
    folder = attempt.run_dir / ADAPTER_FOLDER
    # Before it is stored: the same content may be in storage already and pending deletion, and must then be kept.
    attempt.leases.keep_adapters(attempt.lease, [digest_file(folder / MANIFEST_NAME)])
    sign_adapters(attempt.settings.signing_key, [folder])
    adapter = store_adapter(attempt.storage, folder, final=True)
    if plan.contract.publish:
        write_probes(attempt.run_dir, base, plan.contract.template_arguments)
        adapter = publish_adapter(attempt, plan.base, DeviceSection(), adapter, attempt.run_dir)
    alias = plan.contract.alias if adapter.published else None
    result: dict[str, Any] = {"adapter_id": adapter.id, "notes": imported.notes}
    result, terms = judge_for_alias(attempt, [adapter], alias, result)
    # Send events that waited for the database.
    attempt.report()
    attempt.leases.finish(attempt.lease, result, adapters=[adapter], alias=alias, terms=terms)


def convert(attempt: Attempt, plan: ImportPlan, base: Path) -> Imported:
    """Write the adapter's folder into the run folder, from the uploaded files.

    Raises:
        InvalidRequest: ``TEMPLATE_UNSUPPORTED``: the uploaded template is not valid.
    """
    tokenizer = Tokenizer.load(base, ChatOptions(plan.contract.template_arguments))
    if plan.template_sha256:
        refuse_other_template(attempt, plan.template_sha256, base, plan.contract.template_arguments)
    folder = attempt.run_dir / ADAPTER_FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    with (
        attempt.storage.local_file(plan.sidecar_sha256, verify=True) as sidecar,
        attempt.storage.local_file(plan.weights_sha256, verify=True) as weights,
    ):
        with sidecar.open("rb") as file:
            raw = file.read(MAX_SIDECAR_BYTES + 1)
        # Stored files are named by their content; errors name the field that its owner knows.
        named = folder.with_name(WEIGHTS_FIELD)
        named.parent.mkdir(parents=True, exist_ok=True)
        named.unlink(missing_ok=True)
        named.symlink_to(weights.resolve())
        request = ImportRequest(
            weights=named,
            sidecar=parse_description(raw),
            base=BaseModelEntry(
                name=plan.base.name, source=LocalSource(path=str(base)), digests=dict(plan.base.digests)
            ),
            base_folder=base,
            name=plan.contract.name,
            sidecar_digest=plan.sidecar_sha256,
            contract_digest=plan.content_digest,
            template_digest=tokenizer.template.digest,
            template_arguments=plan.contract.template_arguments,
        )
        return import_adapter(request, folder)


def refuse_other_template(attempt: Attempt, template_sha256: str, base: Path, arguments: Mapping[str, Any]) -> None:
    """Refuse an adapter whose own template gives different tokens for a plain chat from the base's template, which is
    the one that is served. The adapter's template runs in a process with limits.

    Raises:
        InvalidRequest: ``TEMPLATE_UNSUPPORTED``.
    """
    folder = attempt.run_dir / TEMPLATE_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with attempt.storage.local_file(template_sha256, verify=True) as template:
        check = TemplateCheck(base=str(base), template=str(template), arguments=dict(arguments))
        (folder / PLAN_NAME).write_text(check.model_dump_json())
        try:
            attempt.follow(ChildProcess(TEMPLATE_PROGRAM, folder, threads=1))
        except JobFailed as error:
            if error.code not in (Code.TRAINER_KILLED, Code.OUT_OF_MEMORY):
                raise
            raise InvalidRequest(
                Code.TEMPLATE_UNSUPPORTED,
                "The adapter's chat template exceeds the limits of processor time and memory with a short chat.",
                remedy="Correct the template, or import the adapter without it.",
                param="template_file",
            ) from error


def write_probes(run_dir: Path, base: Path, arguments: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Write probes for the certificates: an imported adapter has no training rows, so every position of the probe chats
    counts.
    """
    encoded = [ids[-MAX_PROBE_TOKENS:] for _, ids in encode_chats(Tokenizer.load(base, ChatOptions(arguments))).chats]
    probes = [{"token_ids": ids, "positions": list(range(1, len(ids)))} for ids in encoded if len(ids) > 1]
    write_json(run_dir / PROBES_NAME, {"probes": probes})
