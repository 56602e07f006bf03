"""From a contract to a queued job: the one path that both views of a job take."""

from __future__ import annotations

from functools import partial
from typing import Any

from api.scope import Scope
from api.services import Services
from shared.contract import FineTuneContract, MergeContract
from shared.digest import digest_json
from shared.errors import Code, Conflict, ContractRejected
from shared.flat import parse_contract
from shared.hub import locate_fetched
from shared.job import Job, Kind, Submission
from shared.planner import MergePlan, PlannedBase
from shared.preflight import Asked, InputFile, Machine, Preflight, preflight


def check_contract(services: Services, scope: Scope, asked: Asked) -> Preflight:
    """Everything that can be known about a job before it trains, and its plan; nothing is written.

    Raises:
        MensError: with the code of the first thing that makes the job impossible.
    """
    contract = parse_contract(asked.sections)
    catalog = services.catalog()
    base = catalog.get(contract.model.hf_repo)
    _refuse_unpublishable(services, contract, {entry.name for entry in catalog.bases})
    data = contract.data
    open_file = partial(_open_file, services, scope)
    train = open_file("data.train_file", data.train_file)
    validation = open_file("data.validation_file", data.validation_file) if data.validation_file else None
    replay = open_file("data.replay_file", data.replay_file) if data.replay_file else None
    rate = scope.ledger.training_rate(base.name)
    machine = Machine(limits=services.serving_tier.limits(), tokens_per_second=rate, thorough=False)
    return preflight(
        asked, base, locate_fetched(base, services.settings.catalog_path), train, validation, machine, replay
    )


def submit_finetune(
    services: Services,
    scope: Scope,
    asked: Asked,
    *,
    labels: dict[str, str],
    idempotency_key: str | None,
    hyperparameters: dict[str, Any] | None = None,
) -> Job:
    """Check a contract to the end, write the job, ring the doorbell.

    Args:
        services: the API's hands.
        scope: the tenant's, whose job it is.
        asked: what to train.
        labels: the caller's metadata.
        idempotency_key: the same key and request give the same job.
        hyperparameters: OpenAI's three, resolved, when the caller speaks that dialect.

    Raises:
        MensError: see :func:`check_contract`; ``IDEMPOTENCY_CONFLICT``.
    """
    checked = check_contract(services, scope, asked)
    plan, data = checked.plan, checked.plan.contract.data
    extra = {
        "training_file": data.train_file,
        "validation_file": data.validation_file,
        "replay_file": data.replay_file,
        "hyperparameters": hyperparameters,
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
        request_digest=digest_json({"plan": plan.digest, "labels": labels}),
    )
    return _submit(services, scope, submission)


def submit_merge(
    services: Services,
    scope: Scope,
    contract: MergeContract,
    *,
    labels: dict[str, str],
    idempotency_key: str | None,
) -> Job:
    """Plan a merge, write the job, ring the doorbell.

    Raises:
        NotFound: ``ADAPTER_NOT_FOUND`` or ``MODEL_NOT_FOUND``. Conflict: ``BASE_DIGEST_MISMATCH``.
    """
    adapter = scope.registry.adapter(contract.adapter)
    base = services.catalog().get(adapter.base_model)
    if base.digests != adapter.manifest["base_digests"]:
        raise Conflict(
            Code.BASE_DIGEST_MISMATCH,
            f"{adapter.id} was trained on another {base.name} than the catalogue names now.",
            remedy="Register the base it was trained on again with `mens base add`.",
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
    return _submit(services, scope, submission)


def _submit(services: Services, scope: Scope, submission: Submission) -> Job:
    job, created = scope.ledger.submit(submission)
    if created:
        services.doorbell.ring(job.id)
    return job


def _open_file(services: Services, scope: Scope, field: str, file_id: str) -> InputFile:
    file = scope.registry.file(file_id, field)
    return InputFile(file.id, file.sha256, services.storage.open_blob(file.sha256))


def _refuse_unpublishable(services: Services, contract: FineTuneContract, base_names: set[str]) -> None:
    artifact = contract.artifact
    if artifact.publish and not (services.settings.serving_urls or services.settings.serving_dns):
        raise ContractRejected(
            Code.CONTRACT_UNSUPPORTED,
            "artifact.publish is true, but no serving replica is configured.",
            remedy="Set MENS_SERVING_URLS or MENS_SERVING_DNS, or set artifact.publish to false to train and store only.",
            param="artifact.publish",
        )
    if artifact.alias in base_names:
        raise ContractRejected(
            Code.NAME_INVALID,
            f"artifact.alias is {artifact.alias!r}, which is the name of a base model.",
            remedy="Choose another alias.",
            param="artifact.alias",
        )
