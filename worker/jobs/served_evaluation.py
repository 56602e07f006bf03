"""Self-evaluation of the served adapter: the trainer's own rows and prompts, through a certified replica.

It never fails a job: measurements that are not possible are left out, with a note.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

from shared.counted_nouns import counted
from shared.database.job_states import Stage
from shared.database.records import NewEvent
from shared.errors import Code, LeaseLost, MensError, Unavailable
from shared.job_progress import SelfEvaluationProgress
from shared.model_card.evaluation_rows import (
    MIN_ROWS,
    TOO_LONG,
    EvaluationRow,
    EvaluationRows,
    RowScore,
    WrittenAnswer,
    answer_in_time,
    compare_accuracies,
    compare_losses,
    seconds_for,
)
from shared.model_card.self_evaluation import AnswerSource, SelfEvaluation, ServedEvaluation, shift_warning
from shared.replicas import discover, replica_name
from worker.jobs.attempt import Attempt
from worker.replica_client import BlockingReplicaClient
from worker.run_folder import EVALUATION_NAME, EVALUATION_ROWS_NAME, SUMMARY_NAME, read_json, write_json

REQUEST_SECONDS = 120.0
MAX_TOKENS = 8_192
ROWS_AT_ONCE = 4
"""Rows per request: few, so that requests are short, and so that base and adapter are measured on the same rows when
time runs out.
"""


def evaluate_served(attempt: Attempt, adapter_id: str, certificates: Mapping[str, Any], run_dir: Path) -> None:
    """Measure a certified adapter and its base on the first of its replicas, and add the numbers to the run's self-evaluation.

    Raises:
        LeaseLost, Stopped: see `worker/jobs/attempt.py`.
    """
    measured, rows = read_json(run_dir / EVALUATION_NAME), read_json(run_dir / EVALUATION_ROWS_NAME)
    if not measured or not rows:  # trained by an earlier release
        return
    evaluation = SelfEvaluation.model_validate(measured)
    attempt.enter(Stage.SELF_EVALUATION, "Measuring the served base and adapter on the run's own rows.")
    began, message = time.monotonic(), ""
    try:
        with _open_replica(attempt, certificates, prefer_twin=evaluation.precision == "nf4") as replica:
            models = ServedPair(replica, adapter_id, certificates[replica.name]["base"], _teller(attempt))
            chosen = EvaluationRows.model_validate(rows)
            evaluation = models.measure(evaluation, chosen, seconds_left(run_dir, chosen.seconds))
        message = f"Measured the served model: {_counts(evaluation)}; {time.monotonic() - began:.0f} s."
    except LeaseLost:
        raise
    except MensError as error:
        message = f"The served model was not measured ({error.code})."
        evaluation = evaluation.model_copy(update={"notes": (*evaluation.notes, message)})
    warning = shift_warning(evaluation)
    if warning:
        evaluation = evaluation.model_copy(update={"warnings": (*evaluation.warnings, warning)})
    write_json(run_dir / EVALUATION_NAME, evaluation.model_dump(mode="json"))
    warnings = [NewEvent(level="warn", message=warning)] if warning else []
    attempt.report(events=[NewEvent(message=message), *warnings])


class ServedPair:
    """Base and adapter on one replica.

    Args:
        base: the base as the replica's certificate describes it.
        advance: called with an activity, how much of it is done, and its total; raises when the job must stop.
    """

    def __init__(
        self,
        replica: BlockingReplicaClient,
        adapter_id: str,
        base: Mapping[str, Any],
        advance: Callable[[str, int, int], None] = lambda *_: None,
    ) -> None:
        self._replica, self._adapter_id, self._base, self._advance = replica, adapter_id, base, advance

    def measure(self, evaluation: SelfEvaluation, rows: EvaluationRows, seconds: float) -> SelfEvaluation:
        """Add the served measures and answers to an evaluation."""
        deadline = time.monotonic() + seconds
        chosen = _within_tokens(rows.rows)
        base, tuned = self._score(chosen, deadline)
        left_out = f"{len(base)} of {counted(len(chosen), 'row was', 'rows were')} scored where the model is served: {TOO_LONG}."
        served = ServedEvaluation(
            base=self._base["name"],
            dtype=self._base["dtype"],
            weights="twin" if self._base["twin_of"] else "original",
            rows=len(base),
            tokens=sum(score.targets for score in base),
            loss=compare_losses(base, tuned),
            token_accuracy=compare_accuracies(base, tuned),
        )
        answers = answer_in_time(rows, self._ask, deadline, self._advance)
        return evaluation.model_copy(
            update={
                "served": served if base else None,
                "answers_from": AnswerSource.REPLICA if answers.samples or answers.general else evaluation.answers_from,
                "sample_answers": answers.samples or evaluation.sample_answers,
                "general_answers": answers.general or evaluation.general_answers,
                "notes": (*evaluation.notes, *([left_out] if len(base) < len(chosen) else []), *answers.notes),
            }
        )

    def _score(self, rows: tuple[EvaluationRow, ...], deadline: float) -> tuple[list[RowScore], list[RowScore]]:
        base: list[RowScore] = []
        tuned: list[RowScore] = []
        if rows:
            self._advance("scored_rows", 0, len(rows))
        for at in range(0, len(rows), ROWS_AT_ONCE):
            if at >= MIN_ROWS and time.monotonic() > deadline:
                break
            group = rows[at : at + ROWS_AT_ONCE]
            base += self._replica.score_rows(self._base["name"], group)
            tuned += self._replica.score_rows(self._adapter_id, group)
            self._advance("scored_rows", len(base), len(rows))
        return base, tuned

    def _ask(self, prompts: Sequence[list[int]], max_tokens: int, /) -> tuple[list[WrittenAnswer], list[WrittenAnswer]]:
        old = self._replica.answers(self._base["name"], prompts, max_tokens)
        return old, self._replica.answers(self._adapter_id, prompts, max_tokens)


def _counts(evaluation: SelfEvaluation) -> str:
    """Describe in words how much was measured on a replica."""
    served = evaluation.answers_from is AnswerSource.REPLICA
    counts = [
        (evaluation.served.rows if evaluation.served else 0, "rows"),
        (len(evaluation.sample_answers) if served else 0, "sample answers"),
        (len(evaluation.general_answers) if served else 0, "general questions"),
    ]
    return ", ".join(f"{count} {noun}" for count, noun in counts if count) or "no rows and no answers"


def _teller(attempt: Attempt) -> Callable[[str, int, int], None]:
    def advance(activity: str, done: int, total: int) -> None:
        attempt.raise_if_stopped()
        progress = SelfEvaluationProgress(activity=activity, items_done=done, items_total=total)
        attempt.report(progress=progress.model_dump())

    return advance


def _open_replica(attempt: Attempt, certificates: Mapping[str, Any], *, prefer_twin: bool) -> BlockingReplicaClient:
    """Open the first replica that has a certificate; as in the gateway, twins come first if they are preferred."""
    settings = attempt.settings
    key = settings.serving_key.get_secret_value()
    certified = [
        (not (prefer_twin and certificates[name]["base"]["twin_of"]), url)
        for url in discover(settings.serving_urls, settings.serving_dns)
        if (name := replica_name(url)) in certificates
    ]
    if certified:
        return BlockingReplicaClient(min(certified, key=itemgetter(0))[1], key, REQUEST_SECONDS)
    raise Unavailable(
        Code.SERVING_UNAVAILABLE,
        "The replicas that were certified are no longer configured.",
        remedy="Restart them, or remove them from MENS_SERVING_URLS.",
    )


def _within_tokens(rows: tuple[EvaluationRow, ...]) -> tuple[EvaluationRow, ...]:
    tokens = 0
    chosen: list[EvaluationRow] = []
    for row in rows:
        tokens += len(row.token_ids)
        if tokens > MAX_TOKENS and len(chosen) >= MIN_ROWS:
            break
        chosen.append(row)
    return tuple(chosen)


def seconds_left(run_dir: Path, spent: float) -> float:
    """Return the seconds that remain of a run's self-evaluation, of which the trainer has spent some."""
    # A run of an earlier release may lack its training's time.
    with suppress(KeyError, TypeError):
        return seconds_for(float((read_json(run_dir / SUMMARY_NAME) or {})["training_summary"]["wall_secs"]), spent)
    return seconds_for(0.0)
