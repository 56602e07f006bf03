"""From a contract to a queued job: the one path that both views of a job take."""

from __future__ import annotations

from typing import Any

from api.services import Services
from shared.contract import FineTuneContract, MergeContract
from shared.dataset import check_dataset
from shared.digest import digest_json
from shared.errors import Code, Conflict, ContractRejected
from shared.job import Job, Kind, Submission
from shared.planner import DataFile, ExecutionPlan, MergePlan, PlannedBase, plan_finetune

DEFAULT_NAME = "adapter"


def plan_contract(services: Services, contract: FineTuneContract, name: str | None) -> ExecutionPlan:
    """Resolve what the contract names and plan it; nothing is written.

    Raises:
        MensError: with the code of the first thing that makes the contract impossible.
    """
    base = services.catalog().get(contract.model.hf_repo)
    if contract.artifact.publish and not services.settings.serving_urls:
        raise ContractRejected(
            Code.CONTRACT_UNSUPPORTED,
            "artifact.publish is true, but no serving replica is configured.",
            remedy="Set MENS_SERVING_URLS, or set artifact.publish to false to train and store only.",
            param="artifact.publish",
        )
    if any(entry.name == contract.artifact.alias for entry in services.catalog().bases):
        raise ContractRejected(
            Code.NAME_INVALID,
            f"artifact.alias is {contract.artifact.alias!r}, which is the name of a base model.",
            remedy="Choose another alias.",
            param="artifact.alias",
        )
    data = contract.data
    train = _data_file(services, data.train_file, data.min_rating, "data.train_file")
    validation = None
    if data.validation_file:
        validation = _data_file(services, data.validation_file, data.min_rating, "data.validation_file")
    adapter_name = name or contract.exec.adapter_tag or DEFAULT_NAME
    return plan_finetune(contract, base, train, validation, adapter_name)


def submit_finetune(
    services: Services,
    contract: FineTuneContract,
    *,
    name: str | None,
    labels: dict[str, str],
    idempotency_key: str | None,
    hyperparameters: dict[str, Any] | None = None,
) -> Job:
    """Plan a contract, write the job, ring the doorbell.

    Args:
        services: the API's hands.
        contract: what to train.
        name: left part of the adapter's id.
        labels: the caller's metadata.
        idempotency_key: the same key and request give the same job.
        hyperparameters: OpenAI's three, resolved, when the caller speaks that dialect.

    Raises:
        MensError: see :func:`plan_contract`; ``IDEMPOTENCY_CONFLICT``.
    """
    plan = plan_contract(services, contract, name)
    extra = {
        "training_file": contract.data.train_file,
        "validation_file": contract.data.validation_file,
        "hyperparameters": hyperparameters,
    }
    submission = Submission(
        kind=Kind.FINETUNE,
        base_model=plan.base.name,
        name=plan.adapter_name,
        contract=contract.model_dump(mode="json"),
        plan=plan.model_dump(mode="json"),
        extra=extra,
        labels=labels,
        idempotency_key=idempotency_key,
        request_digest=digest_json({"plan": plan.digest, "labels": labels}),
    )
    return _submit(services, submission)


def submit_merge(
    services: Services, contract: MergeContract, *, labels: dict[str, str], idempotency_key: str | None
) -> Job:
    """Plan a merge, write the job, ring the doorbell.

    Raises:
        NotFound: ``ADAPTER_NOT_FOUND`` or ``MODEL_NOT_FOUND``. Conflict: ``BASE_DIGEST_MISMATCH``.
    """
    adapter = services.registry.adapter(contract.adapter)
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
    return _submit(services, submission)


def _submit(services: Services, submission: Submission) -> Job:
    job, created = services.ledger.submit(submission)
    if created:
        services.doorbell.ring(job.id)
    return job


def _data_file(services: Services, file_id: str, min_rating: int, param: str) -> DataFile:
    file = services.registry.file(file_id)
    with services.storage.open_blob(file.sha256).open("rb") as lines:
        report = check_dataset(lines, min_rating=min_rating, param=param)
    return DataFile(file_id=file.id, sha256=file.sha256, bytes=file.bytes, rows=report.trainable_rows)
