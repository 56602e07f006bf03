"""Run the evaluations of a policy and of the gate `forget`: send the same requests to candidate and incumbent, and
return their scores as evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter

from shared.database.evaluation.evals import Evals
from shared.database.evaluation.items import EvalItems
from shared.database.files.files import Files
from shared.errors import InvalidRequest, JobFailed, NotFound
from shared.evaluation.items import check_count, check_items, read_items
from shared.evaluation.plan import EvaluationPlan, ModelTarget, PlannedItems, plan_run
from shared.evaluation.types import (
    Answer,
    ChatSampling,
    CompletionsSource,
    Criterion,
    EvalSpec,
    FileId,
    InputMessages,
    ItemReference,
    ItemResult,
    MessageTemplate,
    RunExtension,
    RunSpec,
)
from shared.gates.evidence import AnswerPair, ForgetEvidence, RunScores, ScoredAnswer
from shared.gates.forget_gates import GENERAL, parents_run
from shared.gates.policy import RunTemplate
from shared.graders.types import ScoreModel
from worker.evaluation.general_questions import ask_general_questions
from worker.evaluation.run import EvaluatingJob, evaluate_model

MOST_ITEMS = 100_000
"""Largest number of answers of one run; the API's default bound for runs (`MENS_MAX_EVAL_ITEMS`)."""
NO_EVIDENCE = (NotFound, InvalidRequest, JobFailed)
"""Permanent errors of a run: the run then counts as missing evidence, and its gates give the reason. Other errors end
the attempt, which is retried.
"""


def run_templates(
    job: EvaluatingJob, templates: Mapping[str, RunTemplate], adapter_id: str, compared_with: str | None
) -> tuple[dict[str, RunScores], dict[str, str]]:
    """Run evaluations of a policy; results that an earlier attempt stored are not requested again.

    Args:
        job: the attempt that judges.
        templates: the runs, by the policy's name for them.
        adapter_id: id of the candidate, which is served.
        compared_with: id of the incumbent, or name of the base; None: no comparison.

    Returns:
        the runs by name, and for each missing run the reason.
    """
    runs, missing = {}, {}
    for name, template in templates.items():
        try:
            runs[name] = _run(job, name, template, adapter_id, compared_with)
        except NO_EVIDENCE as error:
            missing[name] = f"{error.code}: {error.message}"
    return runs, missing


def run_forget(
    job: EvaluatingJob, parents: Mapping[str, RunTemplate], adapter_id: str, compared_with: str
) -> ForgetEvidence:
    """Compare an adapter with the model from which its training started, for the gate `forget`.

    A run that the policy also has, with the same rows and models, is not repeated.

    Args:
        job: the attempt that judges.
        parents: the runs by which the parent was judged.
        adapter_id: id of the candidate, which is served.
        compared_with: id of the parent, or name of the base.
    """
    templates, absent = run_templates(job, parents, adapter_id, compared_with)
    runs = {parents_run(name): run for name, run in templates.items()}
    missing = {parents_run(name): reason for name, reason in absent.items()}
    try:
        runs = {GENERAL: ask_general_questions(job, adapter_id, compared_with)} | runs
    except NO_EVIDENCE as error:
        missing = {GENERAL: f"{error.code}: {error.message}"} | missing
    return ForgetEvidence(compared_with=compared_with, runs=runs, missing=missing)


def answer_pairs(results: Iterable[ItemResult], criteria: list[Criterion]) -> Iterator[AnswerPair]:
    """Yield both models' answers, item by item. Only one item's answers are in memory at a time; the others are reduced
    to scores.

    Args:
        results: the run's results by position; the answers to one item are adjacent.
        criteria: the eval's criteria.
    """
    for _, same_item in groupby(results, key=attrgetter("item_index")):
        yield _pair(list(same_item), criteria)


def _run(job: EvaluatingJob, name: str, template: RunTemplate, adapter_id: str, compared_with: str | None) -> RunScores:
    database, tenant = job.leases.database, job.lease.job.tenant
    evaluation = Evals(database, tenant).get(template.eval)
    spec = EvalSpec.model_validate(evaluation.spec)
    plan = _plan(job, evaluation.id, spec, template, adapter_id, compared_with)
    # The run is named by its plan, so that a later attempt continues it only if everything that it compares is
    # unchanged.
    run = job.leases.open_run(job.lease, evaluation.id, f"gate {name} {plan.digest[:12]}", plan.model_dump(mode="json"))
    outcome = evaluate_model(job, plan, run.id)
    results = (ItemResult.model_validate(item.result) for item in EvalItems(database).all(run.id))
    return RunScores(
        eval_id=evaluation.id,
        run_id=run.id,
        measured_at=run.created_at,
        candidate=adapter_id,
        incumbent=compared_with,
        pairs=tuple(answer_pairs(results, spec.testing_criteria)),
        sandbox=outcome.totals.sandbox,
        unrepeatable=outcome.totals.unrepeatable,
    )


def _plan(
    job: EvaluatingJob, eval_id: str, spec: EvalSpec, template: RunTemplate, adapter_id: str, compared_with: str | None
) -> EvaluationPlan:
    file = Files(job.leases.database, job.lease.job.tenant).get(template.file, "file")
    prompt = _prompt(template)
    with job.storage.local_file(file.sha256) as path:
        report = check_items(read_items(path), spec, prompt, is_sampled=True, limit=MOST_ITEMS)
    report.raise_if_invalid("file", is_file=True)
    sampling = ChatSampling(
        temperature=template.temperature, seed=template.seed, max_completion_tokens=template.max_completion_tokens
    )
    source = CompletionsSource(
        type="completions",
        source=FileId(type="file_id", id=file.id),
        input_messages=prompt,
        sampling_params=sampling,
    )
    run = RunSpec(
        data_source=source,
        mens=RunExtension(incumbent=compared_with, samples=template.samples, noise_floor=template.noise_floor),
    )
    models = [ModelTarget(name=name, served=name) for name in (adapter_id, compared_with) if name]
    items = PlannedItems(file_id=file.id, sha256=file.sha256, count=report.count)
    plan = plan_run(eval_id, spec, run, items, models, template.seed)
    check_count(plan.answers, MOST_ITEMS)
    return plan


def _prompt(template: RunTemplate) -> InputMessages:
    if isinstance(template.messages, str):
        return ItemReference(type="item_reference", item_reference=template.messages)
    return MessageTemplate.model_validate({"type": "template", "template": template.messages})


def _pair(results: list[ItemResult], criteria: list[Criterion]) -> AnswerPair:
    """Return both models' answers to one item."""
    first = results[0]
    context = first.item.get("context")
    return AnswerPair(
        item_index=first.item_index,
        context=context if isinstance(context, str) else None,
        candidate=tuple(_scored(result.answer, criteria) for result in results),
        incumbent=tuple(_scored(result.incumbent, criteria) for result in results if result.incumbent),
        repeated=tuple(_scored(result.repeated, criteria) for result in results if result.repeated),
    )


def _scored(answer: Answer, criteria: list[Criterion]) -> ScoredAnswer:
    """Return an answer's scores, from 0 to 1 if the criterion has a range; a missing or unjudged answer has none."""
    fault = answer.error or next((result.error for result in answer.results if result.error), None)
    if fault or not answer.results:
        outcome = fault or {"code": "", "message": "it was not evaluated"}
        return ScoredAnswer(error=f"{outcome['code']}: {outcome['message']}")
    scores = {}
    for criterion, result in zip(criteria, answer.results, strict=True):
        low, high = criterion.range if isinstance(criterion, ScoreModel) else (0.0, 1.0)
        scores[result.name] = (result.score - low) / (high - low)
    return ScoredAnswer(scores=scores, passed=answer.status == "pass")
