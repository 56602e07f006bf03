"""Judge an adapter by a policy: read its training from its job's record, evaluate it through the API, and write one
receipt.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from shared.counted_nouns import counted
from shared.database.adapters import Adapter, Adapters, NewAdapter
from shared.database.gates.policies import Policies, PolicyName
from shared.database.gates.receipts import NewReceipt, Receipts, StoredReceipt
from shared.database.gates.shadow_comparisons import ShadowComparisons, ShadowPair
from shared.database.job_results import ResultFile
from shared.database.job_states import Stage
from shared.database.jobs import Jobs
from shared.database.names.aliases import Aliases
from shared.database.names.move_evidence import WITH_EVIDENCE, Terms
from shared.database.overview.named_adapter import first_comparison
from shared.database.records import NewEvent
from shared.errors import JobFailed, NotFound, Unavailable
from shared.gate_outcome import GateStatus, overall_outcome
from shared.gates.cycles_file import read_cycles
from shared.gates.evaluate import judge
from shared.gates.evidence import (
    AdapterRef,
    Evidence,
    ForgetEvidence,
    PromotionCycle,
    ServedBaseRef,
    ShadowCounts,
    TrainingReport,
)
from shared.gates.forget_gates import GENERAL
from shared.gates.policy import GatePolicy, RunTemplate, ShadowGate
from shared.gates.policy_file import policy_digest
from shared.gates.receipt import Receipt
from shared.gates.training_gates import report_of
from shared.replicas import Fit, ReplicaCapabilities, TrainedWeights, discover
from worker.evaluation.gate_runs import run_forget, run_templates
from worker.evaluation.general_questions import lost_questions
from worker.jobs.attempt import Attempt
from worker.replica_client import BlockingReplicaClient

REQUEST_SECONDS = 10.0
MOST_NAMED = 10
"""Largest number of lost questions that an event names."""


class PlannedCycles(BaseModel):
    """The file of cycles that a ``judge`` job reads."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    file_id: str
    sha256: str
    created_at: datetime


class GivenCycles(NamedTuple):
    """Cycles of scorecards, and when their file was uploaded."""

    cycles: tuple[PromotionCycle, ...]
    given_at: datetime


class JudgePlan(BaseModel):
    """Plan of a ``judge`` job: the adapter, the alias, the policy and cycles of scorecards."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    adapter_id: str
    adapter_digest: str
    alias: str
    policy: PolicyName
    cycles: PlannedCycles | None = None


class TrainingStart(NamedTuple):
    """The model that training started from, and the runs by which it was judged.

    Attributes:
        model: id of the parent, or name of the base if no parent can answer.
        runs: runs by which the parent was judged.
    """

    model: str
    runs: dict[str, RunTemplate]


def run_judge(attempt: Attempt) -> None:
    """Run a judge attempt from claim to success: the job succeeds with a receipt, whether the adapter passed or failed.

    Raises:
        MensError: the attempt failed, with its code.
    """
    plan = JudgePlan.model_validate(attempt.lease.job.plan)
    cycles = _read_cycles(attempt, plan.cycles) if plan.cycles else None
    receipt = judge_adapter(attempt, plan.adapter_id, plan.alias, plan.policy, cycles)
    # Send events that waited for the database.
    attempt.report()
    attempt.leases.finish(attempt.lease, receipt_result(receipt))


def judge_adapter(
    attempt: Attempt, adapter_id: str, alias: str, policy: PolicyName, cycles: GivenCycles | None = None
) -> StoredReceipt:
    """Judge a published adapter against the alias's current target, and store the receipt."""
    database, tenant = attempt.leases.database, attempt.lease.job.tenant
    adapters = Adapters(database, tenant)
    adapter, incumbent = adapters.get(adapter_id), _incumbent(attempt, alias, adapters)
    stored = Policies(database, tenant).exactly(policy)
    gate_policy = GatePolicy.model_validate(stored.policy)
    compared_with = _compared_with(adapter, incumbent, adapters, gate_policy)
    attempt.enter(
        Stage.EVALUATING,
        f"Evaluating {adapter.id} against {compared_with or 'no incumbent'} by the policy {policy.name} "
        f"({policy.digest[:12]}).",
    )
    served = served_bases(attempt, adapter.base_digest, TrainedWeights.of(adapter.manifest))
    runs, missing = run_templates(attempt, gate_policy.runs_read, adapter.id, compared_with)
    start = _start(attempt, adapter, adapters) if _asks_what_is_forgotten(gate_policy) else None
    evidence = Evidence(
        adapter=AdapterRef(id=adapter.id, digest=adapter.digest),
        incumbent=AdapterRef(id=incumbent.id, digest=incumbent.digest) if incumbent else None,
        compared_with=compared_with,
        serving_base=served[0] if len(served) == 1 else None,
        judged_at=attempt.leases.now(),
        training=training_report(Jobs(database, tenant), adapter),
        runs=runs,
        missing=missing,
        shadows=_shadows(attempt, gate_policy, alias, incumbent, adapter),
        cycles=cycles.cycles if cycles else (),
        cycles_from=cycles.given_at if cycles else None,
        forget=run_forget(attempt, start.runs, adapter.id, start.model) if start else None,
        attempt=_attempt_number(attempt, gate_policy, start.runs if start else {}, adapter, incumbent),
    )
    receipt = attempt.leases.add_receipt(attempt.lease, _new(judge(gate_policy, evidence, policy.name)))
    attempt.report(events=[*_events(receipt), *_forgotten(evidence.forget)])
    return receipt


def _read_cycles(attempt: Attempt, planned: PlannedCycles) -> GivenCycles:
    with attempt.storage.local_file(planned.sha256) as path:
        return GivenCycles(read_cycles(path), planned.created_at)


def judge_for_alias(
    attempt: Attempt,
    adapters: list[NewAdapter],
    alias: str | None,
    result: dict[str, Any],
    files: list[ResultFile] | None = None,
) -> tuple[dict[str, Any], Terms]:
    """Publish a job's adapters and judge the result, if a policy governs the alias that the job is to move.

    Args:
        attempt: the attempt that made them.
        adapters: its checkpoints and its result, which is published.
        alias: the alias that the job is to move; None if it moves none.
        result: the job's result so far, which training gates read.
        files: files that the job produced.

    Returns:
        the job's result, with the receipt if one was made, and the terms for moving the alias.

    Raises:
        MensError: see :func:`judge_adapter`. Once the adapter is published, none of these errors fails the job
            permanently: it succeeds, and ``judging_error`` in its result gives the reason for the missing receipt.
    """
    governed = Aliases(attempt.leases.database, attempt.lease.job.tenant).governing(alias).policy if alias else None
    if alias is None or governed is None:
        return result, WITH_EVIDENCE
    attempt.leases.publish(attempt.lease, adapters, result, alias=alias, files=files)
    final = next(adapter for adapter in adapters if adapter.final)
    receipt = judge_adapter(attempt, final.id, alias, governed.policy)
    return result | receipt_result(receipt), served_terms(attempt)


def receipt_result(receipt: StoredReceipt) -> dict[str, Any]:
    """Return the summary of a receipt that a job's result contains."""
    kept = ("name", "status", "block", "message", "value", "bound", "n", "items_needed")
    rows = [{key: row[key] for key in kept} for row in receipt.receipt["gates"]]
    return {"receipt": {"id": receipt.id, "passed": receipt.passed, "gates": rows}}


def served_terms(attempt: Attempt) -> Terms:
    """Return a job's terms for moving an alias: the bases that are served now. A job overrides nothing."""
    served = served_bases(attempt)
    return Terms(served=frozenset(base.digest for base in served) if served else None)


def served_bases(attempt: Attempt, base_digest: str = "", trained: TrainedWeights | None = None) -> list[ServedBaseRef]:
    """Return the bases that the replicas serve, each once.

    Args:
        base_digest: only replicas that serve the adapters of this base.
        trained: only the replicas that best fit an adapter trained on these weights, because its requests are sent to
            these.
    """
    settings, served_there = attempt.settings, list[ReplicaCapabilities]()
    for url in discover(settings.serving_urls, settings.serving_dns):
        try:
            with BlockingReplicaClient(url, settings.serving_key.get_secret_value(), REQUEST_SECONDS) as replica:
                served = replica.capabilities()
        except (Unavailable, JobFailed):
            continue  # its bases are unknown; the others respond
        if base_digest not in ("", served.adapters_digest):
            continue
        served_there.append(served)
    fits = [served.fit_of(trained) for served in served_there]
    best = [served for served, fit in zip(served_there, fits, strict=True) if fit is max(fits) is not Fit.NONE]
    bases = {
        replica_base.served_digest: ServedBaseRef(name=replica_base.base, digest=replica_base.served_digest)
        for replica_base in best
    }
    return list(bases.values())


def training_report(jobs: Jobs, adapter: Adapter) -> TrainingReport | None:
    """Return the report on the run that made an adapter, from its job's record; None if it has none, as for an imported
    adapter.
    """
    try:
        job, preflight = jobs.get(adapter.job_id), jobs.preflight(adapter.job_id)
    except NotFound:
        return None
    return report_of(preflight, job.id, job.result)


def _incumbent(attempt: Attempt, alias: str, adapters: Adapters) -> Adapter | None:
    incumbent = Aliases(attempt.leases.database, attempt.lease.job.tenant).governing(alias).incumbent
    return adapters.get(incumbent) if incumbent else None


def _compared_with(adapter: Adapter, incumbent: Adapter | None, adapters: Adapters, policy: GatePolicy) -> str | None:
    """Return the model that an adapter is compared with; None if it is compared with none."""
    if incumbent:
        return incumbent.id
    if policy.without_incumbent == "not_applicable":
        return None
    return first_comparison(adapters, (adapter.manifest.get("parent") or {}).get("id"), adapter.base_model)


def _shadows(
    attempt: Attempt, policy: GatePolicy, alias: str, incumbent: Adapter | None, adapter: Adapter
) -> dict[str, ShadowCounts]:
    """Return the comparisons on copies of the tenant's requests for the alias, by the id of the eval that judged them."""
    comparisons = ShadowComparisons(attempt.leases.database, attempt.lease.job.tenant)
    counts: dict[str, ShadowCounts] = {}
    for _, gate in policy.gates.configured():
        if isinstance(gate, ShadowGate) and incumbent is not None:
            pair = ShadowPair(alias=alias, incumbent_id=incumbent.id, candidate_id=adapter.id, eval_id=gate.eval)
            if comparison := comparisons.find(pair):
                counts[gate.eval] = ShadowCounts.model_validate(
                    comparison.model_dump(include=set(ShadowCounts.model_fields))
                )
    return counts


def _asks_what_is_forgotten(policy: GatePolicy) -> bool:
    return policy.gates.forget is not None and policy.gates.forget.applies


def _start(attempt: Attempt, adapter: Adapter, adapters: Adapters) -> TrainingStart:
    """Return the model that an adapter's training started from, independent of the alias's target, and the runs by
    which it was judged.
    """
    database, tenant = attempt.leases.database, attempt.lease.job.tenant
    parent = (adapter.manifest.get("parent") or {}).get("id")
    judged_by = Policies(database, tenant).of_newest_receipt(parent) if parent else None
    runs = GatePolicy.model_validate(judged_by.policy).runs_read if judged_by else {}
    return TrainingStart(first_comparison(adapters, parent, adapter.base_model), runs)


def _attempt_number(
    attempt: Attempt,
    policy: GatePolicy,
    parents_runs: Mapping[str, RunTemplate],
    adapter: Adapter,
    incumbent: Adapter | None,
) -> int:
    """Return the number of this receipt for the pair under a policy if a run samples answers; otherwise 0."""
    if not any(template.temperature > 0 for template in (*policy.runs_read.values(), *parents_runs.values())):
        return 0
    receipts = Receipts(attempt.leases.database, attempt.lease.job.tenant)
    return 1 + receipts.count(
        adapter.id, adapter.digest, incumbent.digest if incumbent else None, policy_digest(policy)
    )


def _new(receipt: Receipt) -> NewReceipt:
    incumbent, base = receipt.incumbent, receipt.serving_base
    return NewReceipt(
        adapter_id=receipt.adapter.id,
        adapter_digest=receipt.adapter.digest,
        incumbent_id=incumbent.id if incumbent else None,
        incumbent_digest=incumbent.digest if incumbent else None,
        policy_digest=receipt.policy.digest,
        serving_digest=base.digest if base else None,
        passed=receipt.overall_passed,
        valid_until=receipt.valid_until,
        receipt=receipt.model_dump(mode="json", by_alias=True),
    )


def _events(receipt: StoredReceipt) -> list[NewEvent]:
    """Return an event for the receipt and one for each gate."""
    outcome = overall_outcome(receipt.passed, receipt.receipt["gates"]).word
    events = [NewEvent(message=f"{receipt.adapter_id}: {outcome}, receipt {receipt.id}.", data={"receipt": receipt.id})]
    for row in receipt.receipt["gates"]:
        line = f"{row['name']} {GateStatus(row['status']).word}: {row['message']}."
        data = {"receipt": receipt.id, "gate": row["name"]}
        events.append(NewEvent(level="info" if row["passed"] else "warn", message=line, data=data))
    return events


def _forgotten(evidence: ForgetEvidence | None) -> list[NewEvent]:
    """Return an event that names the general questions that only the earlier model answered."""
    run = evidence.runs.get(GENERAL) if evidence else None
    lost = lost_questions(run) if run else []
    if not run or not lost:
        return []
    more = f" … and {len(lost) - MOST_NAMED} more" if len(lost) > MOST_NAMED else ""
    message = f"{run.incumbent} answered {len(lost)} of {counted(len(run.pairs), 'general question')} that {run.candidate} does not: {' '.join(lost[:MOST_NAMED])}{more}"
    return [NewEvent(level="warn", message=message, data={"lost": len(lost)})]
