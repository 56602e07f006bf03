"""The evaluate job: answer, judge and store every item of a run, then compare its models, and finish."""

from __future__ import annotations

from shared.counted_nouns import counted
from shared.database.job_states import Stage
from shared.evaluation.plan import EvaluationPlan
from worker.evaluation.run import evaluate_model
from worker.jobs.attempt import Attempt


def run_evaluate(attempt: Attempt) -> None:
    """Run an evaluate attempt from claim to success.

    Raises:
        MensError: the attempt failed, with its code.
    """
    job = attempt.lease.job
    plan = EvaluationPlan.model_validate(job.plan)
    models = " and ".join(target.name for target in plan.models) or "the rows' own answers"
    attempt.enter(Stage.EVALUATING, f"Evaluating {models}: {counted(plan.answers, 'output item')}.")
    outcome = evaluate_model(attempt, plan, job.id)
    # Send events that waited for the database.
    attempt.report()
    attempt.leases.finish(attempt.lease, outcome.as_dict())
