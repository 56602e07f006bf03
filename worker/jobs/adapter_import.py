"""The import job: an adapter of another program becomes one of ours, is stored, measured like any other, and registered."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
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
from shared.errors import ArtifactInvalid, Code
from shared.hashing import digest_file
from shared.tokenization.chat_template import ChatTemplate
from shared.tokenization.template_arguments import ChatOptions
from shared.tokenization.tokenizer import Tokenizer
from worker.jobs.attempt import Attempt
from worker.jobs.certificates import first_difference
from worker.jobs.finetune import publish_adapter, sign_adapters, store_adapter
from worker.jobs.judge import judge_for_alias
from worker.probe_chats import CHATS, encode_chats
from worker.run_folder import ADAPTER_FOLDER, PROBES_NAME, write_json

MAX_PROBE_TOKENS = 256
MAX_TEMPLATE_BYTES = 1 << 20


def run_import(attempt: Attempt) -> None:
    """Run an import attempt from claim to success.

    Raises:
        MensError: the attempt failed, with its code. LeaseLost, Stopped: see `worker/jobs/attempt.py`.
    """
    plan = ImportPlan.model_validate(attempt.lease.job.plan)
    attempt.enter(Stage.PREFLIGHT, f"Checking the adapter against the base {plan.base.name}.")
    base = attempt.locate_base(plan.base)
    imported = convert(attempt, plan, base)
    attempt.report(events=[NewEvent(level="warn", message=note) for note in imported.notes])
    folder = attempt.run_dir / ADAPTER_FOLDER
    attempt.leases.keep_adapters(attempt.lease, [digest_file(folder / MANIFEST_NAME)])
    sign_adapters(attempt.settings, [folder])
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
        ArtifactInvalid: with the code of the defect; see `shared/artifacts/adapter_import.py`.
            ``ADAPTER_TEMPLATE_MISMATCH``.
        InvalidRequest: ``TEMPLATE_UNSUPPORTED``: the uploaded template is not valid.
    """
    tokenizer = Tokenizer.load(base, ChatOptions(plan.contract.template_arguments))
    if plan.template_sha256:
        with attempt.storage.local_file(plan.template_sha256, verify=True) as template, template.open("rb") as file:
            refuse_other_template(tokenizer, file.read(MAX_TEMPLATE_BYTES).decode(errors="replace"))
    folder = attempt.run_dir / ADAPTER_FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    with (
        attempt.storage.local_file(plan.sidecar_sha256, verify=True) as sidecar,
        attempt.storage.local_file(plan.weights_sha256, verify=True) as weights,
    ):
        with sidecar.open("rb") as file:
            raw = file.read(MAX_SIDECAR_BYTES + 1)
        request = ImportRequest(
            weights=weights,
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


def refuse_other_template(tokenizer: Tokenizer, text: str) -> None:
    """Refuse an adapter whose own template gives other tokens for a plain chat than the base's template, which is
    served.

    Raises:
        ArtifactInvalid: ``ADAPTER_TEMPLATE_MISMATCH``, with the first difference. InvalidRequest: ``TEMPLATE_UNSUPPORTED``.
    """
    template = ChatTemplate(text, tokenizer.template.special_tokens, tokenizer.options.arguments)
    plain = [chat for chat in CHATS if chat.prompt and not chat.tools]
    served = {chat.name: ids for chat, ids in encode_chats(tokenizer, plain).chats}
    for chat, ids in encode_chats(replace(tokenizer, template=template), plain).chats:
        if found := first_difference(ids, served.get(chat.name)):
            raise ArtifactInvalid(
                Code.ADAPTER_TEMPLATE_MISMATCH,
                f"The adapter's chat template has token {found['trainer_id']} at position {found['position']} of the probe chat"
                f" {chat.name!r}, but the base's has {found['server_id']}; chats are served with the base's template.",
                remedy="Add a base whose folder has the adapter's chat_template.jinja, and import the adapter for that base.",
                param="template_file",
                details={"chat": chat.name, **found},
            )


def write_probes(run_dir: Path, base: Path, arguments: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Write probes for the certificates: an imported adapter has no training rows, so every position of the probe chats
    counts.
    """
    encoded = [ids[-MAX_PROBE_TOKENS:] for _, ids in encode_chats(Tokenizer.load(base, ChatOptions(arguments))).chats]
    probes = [{"token_ids": ids, "positions": list(range(1, len(ids)))} for ids in encoded if len(ids) > 1]
    write_json(run_dir / PROBES_NAME, {"probes": probes})
