"""Submission notices about the policy of a job's alias: the gates that apply, and the inputs that are missing."""

from __future__ import annotations

from api.web.tenant_view import TenantView
from shared.contract.sections import ArtifactSection, ImportContract
from shared.database.records import NewEvent
from shared.errors import NotFound
from shared.gates.policy import GatePolicy, RunTemplate


def describe_judgement(view: TenantView, artifact: ArtifactSection | ImportContract, base: str) -> list[NewEvent]:
    """Return events for a job whose alias a policy governs; none for any other job.

    Args:
        view: the view of the job's tenant.
        artifact: whether the job publishes, and the alias that it moves.
        base: name of the job's base, with which the first adapter of a new alias is compared.
    """
    if not artifact.publish or artifact.alias is None:
        return []
    governed = view.aliases.governing(artifact.alias)
    if governed.policy is None:
        return []
    name = governed.policy.policy
    policy = GatePolicy.model_validate(view.policies.exactly(name).policy)
    beside = governed.incumbent or (base if policy.without_incumbent == "base" else "nothing")
    gates = [(row, gate) for row, gate in policy.gates.configured() if gate.applies]
    asked = ", ".join(row if gate.block else f"{row} (warns)" for row, gate in gates)
    needed = {getattr(gate, "run", None) for _, gate in gates}
    runs, missing = [], []
    for run, template in policy.runs.items():
        if run in needed:
            try:
                runs.append(f"{run} ({_describe(view, template)})")
            except NotFound as error:
                missing.append(_missing(run, error))
    message = (
        f"The alias {artifact.alias} is governed by the policy {name.name} ({name.digest[:12]}, {governed.policy.scope}): once it is published,"
        f" the adapter is compared with {beside}, and the alias moves to it if it passes. Gates: {asked}."
    )
    message += f" Runs: {', '.join(runs)}." if runs else ""
    return [NewEvent(message=message, data={"policy": name.model_dump()}), *missing]


def _describe(view: TenantView, template: RunTemplate) -> str:
    """Raises:
    NotFound: ``EVAL_NOT_FOUND``, ``FILE_NOT_FOUND``.
    """
    judged, file = view.evals.get(template.eval), view.files.get(template.file, "file")
    answers = f", {template.samples} answers to each" if template.samples > 1 else ""
    return f"eval {judged.name or judged.id}, rows of {file.filename}{answers}"


def _missing(run: str, error: NotFound) -> NewEvent:
    message = (
        f"The policy's run {run} cannot be created: {error.message} Fix this before the adapter is published; otherwise its"
        " gates will be missing_evidence and the alias will not move."
    )
    return NewEvent(level="warn", message=message, data={"error": error.as_dict()})
