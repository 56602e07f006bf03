"""Submission: from a contract to a queued job, for the native API and for OpenAI's."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from api.alias_policy import describe_judgement
from api.services import Services
from api.web.auth import Caller
from api.web.tenant_view import TenantView
from shared.artifacts.base_folders import locate_fetched_base
from shared.artifacts.manifests import AdapterManifest
from shared.artifacts.original_layout import refuse_bin
from shared.base_models.catalog import BaseModelEntry
from shared.contract.auto_hyperparameters import auto_exec
from shared.contract.contracts import FineTuneContract, ImportContract, MergeContract
from shared.contract.flat_keys import from_flat, parse_contract
from shared.contract.parent import PlannedParent
from shared.contract.plan import ImportPlan, MergePlan, PlannedBase
from shared.contract.sections import ArtifactSection
from shared.database.overview.named_adapter import find_to_continue
from shared.database.records import DEFAULT_TERMS, Job, Kind, NewEvent, QueueTerms, Submission
from shared.datasets.reader import count_lines
from shared.errors import Code, Conflict, ContractRejected, DatasetInvalid, Forbidden, NotFound
from shared.gates.cycles_file import read_cycles
from shared.hashing import digest_json
from shared.preflight.machine import machine_of
from shared.preflight.parents import FIELD, planned_parent
from shared.preflight.pipeline import preflight
from shared.preflight.types import InputFile, JobRequest, Preflight
from shared.worker_registry import common_machine

INLINE_NAME = "inline.jsonl"
"""File name of rows that were sent in a job's request."""


def check_contract(services: Services, view: TenantView, request: JobRequest) -> Preflight:
    """Check everything that can be known about a job before it trains, and return its plan; nothing is written.

    Raises:
        MensError: with the code of the first reason that makes the job impossible.
    """
    request = _with_parent(view, request)
    contract, parent = request.contract, request.parent
    catalog = services.catalog()
    if "hf_repo" in contract.model.model_fields_set:
        base = catalog.get(contract.model.hf_repo)
    else:
        base = (
            catalog.get(parent.base_model)
            if parent
            else catalog.get_default(contract.model.hf_repo, services.replicas.serves_adapters_of)
        )
        model = contract.model.model_copy(update={"hf_repo": base.name})
        contract = contract.model_copy(update={"model": model})
        request = replace(request, contract=contract, auto=request.auto | {"model.hf_repo"})
    _refuse_unpublishable(services, contract.artifact, "artifact.", {entry.name for entry in catalog.bases})
    data = contract.data
    # The copies are held until the preflight has read them.
    with ExitStack() as local_files:

        def open_file(field: str, file_id: str) -> InputFile:
            file = view.files.get(file_id, field)
            path = local_files.enter_context(services.storage.local_file(file.sha256))
            return InputFile(file.id, file.sha256, path)

        train = replace(open_file("data.train_file", data.train_file), lines=request.train_lines)
        if request.has_auto_rules:
            request = _with_auto_rules(request, base, train)
        validation = open_file("data.validation_file", data.validation_file) if data.validation_file else None
        replay = open_file("data.replay_file", data.replay_file) if data.replay_file else None
        rate = view.jobs.training_rate(base.name)
        worker = common_machine(services.workers.machines())
        limits = services.replica_limits.limits(base.digest)
        machine = machine_of(
            worker,
            limits=limits,
            tokens_per_second=rate.tokens_per_second if rate else None,
            measured_by=rate.job if rate else None,
            other_seconds=rate.other_seconds if rate else None,
            quant_base=services.settings.quant_base,
            thorough=False,
        )
        folder = locate_fetched_base(base, services.settings)
        checked = preflight(request, base, folder, train, validation, machine, replay)
    events = describe_judgement(services, view, contract.artifact, base.name, checked.record(), parent)
    judgement = [event.message for event in events]
    return checked.model_copy(update={"notes": [*checked.notes, *judgement]})


def find_parent(view: TenantView, name: str, param: str = FIELD) -> PlannedParent:
    """Return the adapter that a job continues from, by its name in the tenant's view.

    Args:
        param: the request's field that has the name.
    """
    adapter = find_to_continue(view.adapters, view.names, name, param)
    return planned_parent(AdapterManifest.model_validate(adapter.manifest))


def _with_parent(view: TenantView, request: JobRequest) -> JobRequest:
    name = request.contract.adapter.continue_from
    return request if name is None else replace(request, parent=find_parent(view, name))


def _identity(request: JobRequest, checked: Preflight) -> Any:
    """Return the value that must be equal in a repeated request with the same key: the plan, or for a run with a
    parent, the request.

    The alias that names a parent is often moved by the job itself, and the plan of a repeated request would differ then.
    """
    contract = request.contract
    if contract.adapter.continue_from is None:
        return checked.plan.digest
    contract_fields = contract.model_dump(mode="json", exclude_unset=True)
    return [contract_fields, request.preset, request.domain, request.name, request.backend]


def submit_finetune(
    services: Services,
    view: TenantView,
    request: JobRequest,
    *,
    labels: dict[str, str],
    idempotency_key: str | None,
    hyperparameters: dict[str, Any] | None = None,
    requested_model: str | None = None,
    sent: Any = None,
    terms: QueueTerms = DEFAULT_TERMS,
) -> Job:
    """Check a contract completely, write the job, and enqueue it.

    Args:
        services: the API's services.
        view: the view of the tenant whose job it is.
        request: the requested training.
        labels: the caller's metadata.
        idempotency_key: the same key and request give the same job.
        hyperparameters: OpenAI's three, resolved, for a job of OpenAI's API.
        requested_model: foreign name that such a job uses for its base; None: the base's own name.
        sent: the value that must be equal in a repeated request with the same key; None: the job's plan.
        terms: the job's priority and limits.
    """
    checked = check_contract(services, view, request)
    plan, data = checked.plan, checked.plan.contract.data
    extra = {
        "training_file": data.train_file,
        "validation_file": data.validation_file,
        "replay_file": data.replay_file,
        "hyperparameters": hyperparameters,
        "requested_model": requested_model,
    }
    submission = Submission(
        kind=Kind.FINETUNE,
        base_model=plan.base.name,
        name=plan.adapter_name,
        contract=plan.contract.model_dump(mode="json"),
        plan=plan.model_dump(mode="json"),
        preflight=checked.record() | {"sources": checked.sources},
        extra=extra,
        labels=labels,
        idempotency_key=idempotency_key,
        request_digest=digest_json({"plan": _identity(request, checked) if sent is None else sent, "labels": labels}),
        events=[
            *(NewEvent(level="warn", message=advice) for advice in checked.advice),
            *describe_judgement(services, view, plan.contract.artifact, plan.base.name, checked.record(), plan.parent),
        ],
        # The queue's forecast has its own value for a job of unknown length; a guess counts as unknown.
        expected_seconds=checked.estimate.time.whole_seconds if checked.estimate.time.basis == "measured" else None,
    )
    return submit(services, view, submission, terms)


def submit_rows(
    services: Services,
    view: TenantView,
    rows: list[dict[str, Any]],
    flat: dict[str, Any],
    request: Callable[[FineTuneContract], JobRequest],
    *,
    labels: dict[str, str],
    idempotency_key: str | None,
    terms: QueueTerms = DEFAULT_TERMS,
) -> Job:
    """Submit a job whose rows were sent in the request: they are stored as a file first, as if it had been uploaded.

    Args:
        services: the API's services.
        view: the view of the tenant whose job it is.
        rows: rows of the training file.
        flat: the contract, by flat keys (`shared/contract/flat_keys.py`).
        request: makes the job request from the contract.
        labels, idempotency_key, terms: as in :func:`submit_finetune`.

    Raises:
        MensError: the errors of :func:`submit_finetune`; the file is removed then.
    """
    # Checked before anything is stored, when the file's id is not known yet.
    parse_contract(from_flat(flat | {"train_file": "inline"}))
    with services.storage.writer() as writer:
        for row in rows:
            writer.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        sha256, quota = writer.finish(), services.settings.file_quota
        file = view.files.add(INLINE_NAME, "fine-tune", writer.size, sha256, quota=quota, store=writer.commit)
    job = None
    try:
        contract = parse_contract(from_flat(flat | {"train_file": file.id}))
        job_request = replace(request(contract), has_auto_rules=True)
        # The plan is not compared, because the file has another id each time.
        sent = {
            "rows": sha256,
            "flat": flat,
            "preset": job_request.preset,
            "domain": job_request.domain,
            "name": job_request.name,
        }
        job = submit_finetune(
            services, view, job_request, labels=labels, idempotency_key=idempotency_key, sent=sent, terms=terms
        )
    except DatasetInvalid as error:
        raise _of_inline_rows(error) from None
    finally:
        # The job was refused, or it is the job of an earlier request, which has a file of its own.
        if job is None or job.contract["data"]["train_file"] != file.id:
            view.files.delete(file.id, services.storage.delete_blob)
    return job


def _with_auto_rules(request: JobRequest, base: BaseModelEntry, train: InputFile) -> JobRequest:
    """Return the request with the auto rules for the fields that its contract leaves open, as `mens train` sets them.
    With a preset or domain, which decide these fields, the request is unchanged.
    """
    if request.preset or request.domain:
        return request
    contract, lines = request.contract, train.lines
    if lines is None:
        with train.path.open("rb") as content:
            lines = count_lines(content)
    rules = auto_exec(lines, base.learning_rate, pairs=contract.has_preferences)
    left_open = {name: value for name, value in rules.items() if name not in contract.exec.model_fields_set}
    contract = contract.model_copy(update={"exec": contract.exec.model_copy(update=left_open)})
    return replace(request, contract=contract, auto=request.auto | {f"exec.{name}" for name in left_open})


def _of_inline_rows(error: DatasetInvalid) -> DatasetInvalid:
    """Rewrite an error about the training file to refer to the rows in `data`, since the caller sent no file."""
    if error.param != "data.train_file":
        return error
    message = error.message.replace("the training file", "`data`")
    param, remedy = "data", error.remedy
    if errors := error.details.get("errors"):
        first = errors[0]
        message = f"{error.details['error_count']} of the rows in `data` are bad; the first is row {first['line']}: {first['reason']}."
        param, remedy = f"data.{first['line'] - 1}", "Correct these rows in `data` and send the request again."
    return DatasetInvalid(error.code, message, remedy=remedy, param=param, details=error.details)


def submit_merge(
    services: Services,
    view: TenantView,
    contract: MergeContract,
    *,
    labels: dict[str, str],
    idempotency_key: str | None,
    terms: QueueTerms = DEFAULT_TERMS,
) -> Job:
    """Plan a merge, write the job, and enqueue it.

    Raises:
        Conflict: ``BASE_DIGEST_MISMATCH``.
    """
    refuse_bin(contract.adapter, "adapter")
    adapter = view.adapters.get(contract.adapter)
    base = services.catalog().get(adapter.base_model)
    if base.digests != adapter.manifest["base_digests"]:
        raise Conflict(
            Code.BASE_DIGEST_MISMATCH,
            f"{adapter.id} was trained on a different version of {base.name} than the one in the catalogue now.",
            remedy="Add its original base again with `mens base add`.",
            param="adapter",
        )
    plan = MergePlan(
        contract=contract,
        adapter_id=adapter.id,
        adapter_digest=adapter.digest,
        base=PlannedBase(name=base.name, digests=base.digests),
    )
    submission = Submission(
        kind=Kind.MERGE,
        base_model=base.name,
        name=adapter.manifest["name"],
        contract=contract.model_dump(mode="json"),
        plan=plan.model_dump(mode="json"),
        labels=labels,
        idempotency_key=idempotency_key,
        request_digest=digest_json({"plan": plan.model_dump(mode="json"), "labels": labels}),
    )
    return submit(services, view, submission, terms)


def submit_import(
    services: Services,
    view: TenantView,
    contract: ImportContract,
    *,
    labels: dict[str, str],
    idempotency_key: str | None,
    terms: QueueTerms = DEFAULT_TERMS,
) -> Job:
    """Plan an import, write the job, and enqueue it. The files are read by the worker.

    Raises:
        ContractRejected: the adapter cannot be published, or its alias cannot be moved.
    """
    catalog = services.catalog()
    base = catalog.get(contract.model)
    _refuse_unpublishable(services, contract, "", {entry.name for entry in catalog.bases})
    weights = view.files.get(contract.weights_file, "weights_file")
    refuse_bin(weights.filename, "weights_file")
    template = view.files.get(contract.template_file, "template_file") if contract.template_file else None
    plan = ImportPlan(
        contract=contract,
        base=PlannedBase(name=base.name, digests=base.digests),
        weights_sha256=weights.sha256,
        sidecar_sha256=view.files.get(contract.sidecar_file, "sidecar_file").sha256,
        template_sha256=template.sha256 if template else None,
    )
    submission = Submission(
        kind=Kind.IMPORT,
        base_model=base.name,
        name=contract.name,
        contract=contract.model_dump(mode="json"),
        plan=plan.model_dump(mode="json"),
        labels=labels,
        idempotency_key=idempotency_key,
        request_digest=digest_json({"plan": plan.model_dump(mode="json"), "labels": labels}),
        events=describe_judgement(services, view, contract, base.name),
    )
    return submit(services, view, submission, terms)


def submit_judgement(
    services: Services,
    view: TenantView,
    adapter_id: str,
    alias: str,
    policy_name: str | None,
    *,
    cycles: str | None = None,
    idempotency_key: str | None,
) -> Job:
    """Queue a job that judges an adapter against the alias's current target.

    Args:
        services: the API's services.
        view: the view of the tenant whose alias it is.
        adapter_id: id of a published adapter.
        alias: the alias that the adapter would answer for.
        policy_name: name or digest of a policy; None: the policy that governs the alias.
        cycles: id of a file of cycles; None: without cycles.
        idempotency_key: the same key and request give the same job.

    Raises:
        NotFound: ``POLICY_NOT_FOUND``: also if no policy governs the alias.
        Conflict: ``ADAPTER_NOT_SERVABLE``.
    """
    adapter = next(iter(view.adapters.with_ids([adapter_id])), None) or view.adapters.get(adapter_id)
    if not adapter.published:
        raise Conflict(
            Code.ADAPTER_NOT_SERVABLE,
            f"{adapter.id} is not published, so it cannot answer requests.",
            remedy="Train it with artifact.publish = true.",
            param="adapter",
        )
    governing = view.aliases.governing(alias).policy
    if policy_name is None and governing is None:
        raise NotFound(
            Code.POLICY_NOT_FOUND,
            f"No policy governs {alias!r}, so the adapter cannot be judged.",
            remedy="Name a policy, or assign one: PUT /v1/policy_assignments/alias:NAME.",
            param="policy",
        )
    policy = governing.policy if governing and policy_name is None else view.policies.get(policy_name or "")
    plan: dict[str, Any] = {
        "adapter_id": adapter.id,
        "adapter_digest": adapter.digest,
        "alias": alias,
        "policy": {"tenant": policy.tenant, "name": policy.name, "digest": policy.digest},
    }
    extra = {}
    if cycles is not None:
        file = view.files.get(cycles, "cycles")
        with services.storage.local_file(file.sha256) as path:
            read_cycles(path)
        plan["cycles"] = {"file_id": file.id, "sha256": file.sha256, "created_at": file.created_at.isoformat()}
        extra = {"cycles_file": file.id}
    submission = Submission(
        kind=Kind.JUDGE,
        base_model=adapter.base_model,
        name=adapter.id.partition("@")[0],
        contract={},
        plan=plan,
        extra=extra,
        idempotency_key=idempotency_key,
        request_digest=digest_json({"plan": plan}),
    )
    return submit(services, view, submission)


def check_priority(caller: Caller, priority: int) -> None:
    """Allow only operators to let a job overtake other tenants' jobs.

    Raises:
        Forbidden: ``ROLE_INSUFFICIENT``.
    """
    if priority > DEFAULT_TERMS.priority and not caller.is_operator:
        raise Forbidden(
            Code.ROLE_INSUFFICIENT,
            f"A priority above {DEFAULT_TERMS.priority} overtakes other tenants' jobs, so only an operator may set it.",
            remedy="Leave it out, or ask an operator to raise it: PATCH /v1/jobs/{id}.",
            param="priority",
        )


def submit(services: Services, view: TenantView, submission: Submission, terms: QueueTerms = DEFAULT_TERMS) -> Job:
    """Write a job and enqueue it; the job of an earlier request with the same key is returned unchanged.

    Raises:
        MensError: the errors of :meth:`shared.database.jobs.Jobs.submit`.
    """
    if terms != DEFAULT_TERMS:
        digest = digest_json({"request": submission.request_digest, "terms": terms.model_dump()})
        submission = submission.model_copy(update=terms.model_dump() | {"request_digest": digest})
    job, created = view.jobs.submit(submission)
    # After the commit, because a worker that gets the message at once must find the job.
    if created:
        services.job_queue.enqueue(job.id)
    return job


def _refuse_unpublishable(
    services: Services, artifact: ArtifactSection | ImportContract, prefix: str, base_names: set[str]
) -> None:
    """Refuse a job that cannot be published; ``prefix`` precedes the fields' names in the contract."""
    if artifact.publish and not (services.settings.serving_urls or services.settings.serving_dns):
        raise ContractRejected(
            Code.CONTRACT_UNSUPPORTED,
            f"{prefix}publish is true, but no serving replica is configured.",
            remedy=f"Set MENS_SERVING_URLS or MENS_SERVING_DNS, or set {prefix}publish to false to only store the adapter.",
            param=f"{prefix}publish",
        )
    if artifact.alias in base_names:
        raise ContractRejected(
            Code.NAME_INVALID,
            f"{prefix}alias is {artifact.alias!r}, which is the name of a base model.",
            remedy="Choose another alias.",
            param=f"{prefix}alias",
        )
