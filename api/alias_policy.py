"""Notices about policies. A job's submission reports the gates that apply to its alias, the inputs that are missing,
and gates that cannot pass; storing or assigning a policy reports such gates too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from api.services import Services
from api.web.tenant_view import TenantView
from shared.contract.contracts import ImportContract
from shared.contract.parent import PlannedParent
from shared.contract.sections import ArtifactSection
from shared.database.overview.named_adapter import first_comparison
from shared.database.records import NewEvent
from shared.errors import InvalidRequest, NotFound
from shared.evaluation.items import read_items
from shared.evaluation.types import EvalSpec
from shared.gates.evidence import TrainingReport
from shared.gates.feasibility import Hopeless, RunFacts, hopeless_gates
from shared.gates.forget_gates import parents_run
from shared.gates.policy import GatePolicy, RunTemplate
from shared.gates.training_gates import report_of

MAX_READ_BYTES = 64 << 20
"""Largest file whose items are counted while a caller waits."""


def describe_judgement(
    services: Services,
    view: TenantView,
    artifact: ArtifactSection | ImportContract,
    base: str,
    preflight: Mapping[str, Any] | None = None,
    parent: PlannedParent | None = None,
) -> list[NewEvent]:
    """Return events for a job whose alias a policy governs; none for any other job.

    Args:
        services: the API's services.
        view: the view of the job's tenant.
        artifact: whether the job publishes, and the alias that it moves.
        base: name of the job's base.
        parent: the adapter that the job continues from. The first adapter of a new alias is compared with its parent or
            base.
        preflight: record of the job's preflight; None for an import.
    """
    if not artifact.publish or artifact.alias is None:
        return []
    governed = view.aliases.governing(artifact.alias)
    if governed.policy is None:
        return []
    name = governed.policy.policy
    policy = GatePolicy.model_validate(view.policies.exactly(name).policy)
    first = first_comparison(view.adapters, parent.id if parent else None, base)
    opponent = governed.incumbent or (first if policy.without_incumbent == "base" else "nothing")
    requirements = ", ".join(
        row if gate.block else f"{row} (warns)" for row, gate in policy.gates.configured() if gate.applies
    )
    runs, missing = [], []
    parents = _parents_runs(view, policy, parent.id if parent else None)
    for run, template in [*policy.runs_read.items(), *parents.items()]:
        try:
            runs.append(f"{run} ({_describe(view, template)})")
        except NotFound as error:
            missing.append(_missing(run, error))
    message = (
        f"The alias {artifact.alias} is governed by the policy {name.name} ({name.digest[:12]}, {governed.policy.scope}): once it is published,"
        f" the adapter is compared with {opponent}, and the alias moves to it if it passes. Gates: {requirements}."
    )
    message += f" Runs: {', '.join(runs)}." if runs else ""
    compares = governed.incumbent is not None or policy.without_incumbent == "base"
    hopeless = find_hopeless(
        services, view, policy, preflight, is_imported=preflight is None, compares=compares, parents=parents
    )
    warnings = [NewEvent(level="warn", message=gate.describe(), data={"gate": gate.row}) for gate in hopeless]
    return [NewEvent(message=message, data={"policy": name.model_dump()}), *missing, *warnings]


def find_hopeless(
    services: Services,
    view: TenantView,
    policy: GatePolicy,
    preflight: Mapping[str, Any] | None = None,
    *,
    is_imported: bool = False,
    compares: bool = True,
    parents: Mapping[str, RunTemplate] | None = None,
) -> list[Hopeless]:
    """Return the gates of a policy that no adapter can pass, by the items of its runs and the criteria of their evals.

    Args:
        services: the API's services.
        view: the view of the tenant that uses the policy.
        policy: the policy, with its gates and runs.
        preflight: record of a job's preflight; with it, gates on the training are examined too.
        is_imported: whether the adapter was not trained here.
        compares: whether there is an incumbent.
        parents: the runs by which the parent was judged, if the gate `forget` uses them.
    """
    facts = {}
    for name, template in {**policy.runs, **(parents or {})}.items():
        # Submission has a separate notice for a run whose eval or file is missing.
        with suppress(NotFound, InvalidRequest):
            facts[name] = _facts(services, view, template)
    items = {name: facts[name].items for name in parents or {} if name in facts}
    training: TrainingReport | None = report_of(preflight) if preflight else None
    return list(
        hopeless_gates(
            policy, facts, training=training, is_imported=is_imported, compares=compares, parents_items=items
        )
    )


def _parents_runs(view: TenantView, policy: GatePolicy, parent_id: str | None) -> dict[str, RunTemplate]:
    """Return the runs of the parent's newest receipt, by their names as evidence, if the gate `forget` uses them."""
    asks = policy.gates.forget is not None and policy.gates.forget.applies
    judged_by = view.policies.of_newest_receipt(parent_id) if asks and parent_id else None
    if judged_by is None:
        return {}
    return {
        parents_run(name): template for name, template in GatePolicy.model_validate(judged_by.policy).runs_read.items()
    }


def _facts(services: Services, view: TenantView, template: RunTemplate) -> RunFacts:
    """Return the facts on a run that decide whether its gates can pass."""
    spec = EvalSpec.model_validate(view.evals.get(template.eval).spec)
    criteria = frozenset(criterion.name for criterion in spec.testing_criteria)
    file = view.files.get(template.file, "file")
    if file.bytes > MAX_READ_BYTES:
        return RunFacts(criteria=criteria)
    with services.storage.local_file(file.sha256) as path:
        contexts = Counter(str(item.item.get("context")) for item in read_items(path))
    return RunFacts(contexts.total(), contexts, criteria)


def _describe(view: TenantView, template: RunTemplate) -> str:
    """Describe the eval and the rows of a run."""
    judged, file = view.evals.get(template.eval), view.files.get(template.file, "file")
    answers = f", {template.samples} answers to each" if template.samples > 1 else ""
    return f"eval {judged.name or judged.id}, rows of {file.filename}{answers}"


def _missing(run: str, error: NotFound) -> NewEvent:
    message = (
        f"The policy's run {run} cannot be created: {error.message} Fix this before the adapter is published; otherwise its"
        " gates will be missing_evidence and the alias will not move."
    )
    return NewEvent(level="warn", message=message, data={"error": error.as_dict()})
