"""Asks two models the general questions through the API; the answers show what was forgotten."""

from __future__ import annotations

from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

from shared.errors import MensError
from shared.evaluation.prompts import ROUTES, read_response
from shared.gates.evidence import AnswerPair, RunScores, ScoredAnswer
from shared.gates.forget_gates import GENERAL
from shared.model_card.general_questions import MAX_NEW_TOKENS, GeneralQuestion, all_general_questions
from worker.evaluation.answers import OF_THE_WHOLE
from worker.evaluation.gateway import GatewayClient
from worker.evaluation.run import POLL_SECONDS, EvaluatingJob, open_models


def ask_general_questions(job: EvaluatingJob, adapter_id: str, compared_with: str) -> RunScores:
    """Ask all general questions of two models, at temperature 0. The answers are not stored: a later attempt asks again.

    Args:
        job: the attempt that judges.
        adapter_id: id of the candidate, which is served.
        compared_with: id of its parent, or name of its base.

    Raises:
        JobFailed: ``EVAL_UNAVAILABLE``: ``MENS_API_URL`` is not set.
        Unavailable: the API or a replica does not respond, or a limit of the tenant persists.
        LeaseLost: another attempt owns the job. Also the exceptions of a stop.
    """
    questions, measured_at = all_general_questions(), job.leases.now()
    assignments = [(question, model) for question in questions for model in (adapter_id, compared_with)]
    with open_models(job) as gateway, ThreadPoolExecutor(job.settings.evaluation_concurrency, "general") as pool:
        pending = [pool.submit(_answer, gateway, question, model) for question, model in assignments]
        try:
            _wait(job, pending)
        finally:
            for answer in pending:
                answer.cancel()
            # Without this, the end of the block would wait for threads that still read, until their timeouts.
            gateway.abort()
        answers = [(answer.result(),) for answer in pending]
    pairs = [
        AnswerPair(item_index=index, candidate=candidate, incumbent=incumbent)
        for index, (candidate, incumbent) in enumerate(zip(answers[::2], answers[1::2], strict=True))
    ]
    return RunScores(
        eval_id=GENERAL,
        run_id="",
        measured_at=measured_at,
        candidate=adapter_id,
        incumbent=compared_with,
        pairs=tuple(pairs),
    )


def lost_questions(run: RunScores) -> list[str]:
    """Return the questions that only the earlier model answered correctly."""
    pairs = zip(all_general_questions(), run.pairs, strict=True)
    return [question.question for question, pair in pairs if pair.incumbent[0].passed and not pair.candidate[0].passed]


def _wait(job: EvaluatingJob, answers: list[Future[ScoredAnswer]]) -> None:
    """Wait for all answers. Raises the first error, or the exception of a stop."""
    waiting = set(answers)
    while waiting:
        job.raise_if_stopped()
        finished, waiting = wait(waiting, timeout=POLL_SECONDS, return_when=FIRST_EXCEPTION)
        for answer in finished:
            answer.result()


def _answer(gateway: GatewayClient, question: GeneralQuestion, model: str) -> ScoredAnswer:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question.question}],
        "temperature": 0.0,
        "max_completion_tokens": MAX_NEW_TOKENS,
    }
    try:
        text = read_response("chat", gateway.post(ROUTES["chat"], body)).sample["output_text"]
    except OF_THE_WHOLE:
        raise
    except MensError as error:
        return ScoredAnswer(error=f"{error.code}: {error.message}")
    return ScoredAnswer(passed=question.is_answered_by(text))
