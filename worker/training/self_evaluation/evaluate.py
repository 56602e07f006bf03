"""The self-evaluation of a finished run. It never fails a run: measurements that are not possible are left out, with a
note of the reason.

It runs after the adapter is written, so it cannot change the adapter. Equal runs measure equal numbers.
"""

from __future__ import annotations

import gc
import math
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Protocol, cast, overload

import numpy as np
import torch

from shared.contract.choices import BaseQuant, MethodType
from shared.contract.plan import TrainingInputs
from shared.datasets.preferences.rated import parse_rated_row
from shared.datasets.preferences.rows import parse_chosen
from shared.datasets.row_validation import parse_row
from shared.datasets.rows import TrainingRow
from shared.errors import Code, MensError
from shared.model_card.evaluation_rows import (
    SAMPLE_TOKENS,
    Answers,
    EvaluationRow,
    EvaluationRows,
    RowScore,
    SamplePrompt,
    WrittenAnswer,
    answer_in_time,
    compare_accuracies,
    compare_losses,
    compare_preferences,
    seconds_for,
)
from shared.model_card.self_evaluation import AnswerSource, PreferredAnswers, RowSource, SelfEvaluation
from shared.tokenization.template_arguments import ChatOptions
from shared.tokenization.tokenizer import Tokenizer
from worker.child_runtime import (
    EXIT_CANCELLED,
    EXIT_PAUSED,
    PeerLost,
    StopRequested,
    is_out_of_memory,
    is_peer_lost,
    under_torchrun,
)
from worker.run_folder import EVALUATION_ROWS_NAME, write_json
from worker.training.checkpoint import Progress
from worker.training.data.prepared import Row
from worker.training.method import Example
from worker.training.preference.dpo import DirectPreference
from worker.training.preference.pairs import Pair
from worker.training.preference.scored_rows import preferred_places
from worker.training.self_evaluation.sample_answers import (
    MAX_CANDIDATES,
    MAX_PROMPT_TOKENS,
    answer_both,
    general_prompts,
    read_prompts,
)
from worker.training.self_evaluation.scores import (
    choose_rows,
    score_rows,
    shuffled,
)
from worker.training.trainer import TrainingContext

SAMPLES_VARIABLE = "MENS_SAMPLE_ANSWERS"
DEFAULT_SAMPLES = 8
MAX_TRIES = 3
"""Number of attempts after which a run whose self-evaluation is interrupted each time finishes without it."""


class StopRequests(Protocol):
    """Return true if the worker has requested a pause or a cancel."""

    @property
    def pause_requested(self) -> bool: ...
    @property
    def cancel_requested(self) -> bool: ...


@dataclass
class Measured:
    """A self-evaluation, its duration, and the codes of its failures.

    Attributes:
        seconds: wall-clock time.
        causes: codes of the failures, for telemetry.
    """

    evaluation: SelfEvaluation
    seconds: float = 0.0
    causes: list[str] = field(default_factory=list)

    def payload(self) -> dict[str, Any]:
        """Return the telemetry event: numbers, and no content of a row."""
        evaluation = self.evaluation
        return {
            "source": evaluation.source.value,
            "rows": evaluation.rows,
            "held_out_copies": evaluation.held_out_copies,
            "tokens": evaluation.tokens,
            "base_loss": evaluation.loss and evaluation.loss.base,
            "tuned_loss": evaluation.loss and evaluation.loss.tuned,
            "base_token_accuracy": evaluation.token_accuracy and evaluation.token_accuracy.base,
            "tuned_token_accuracy": evaluation.token_accuracy and evaluation.token_accuracy.tuned,
            "sample_answers": len(evaluation.sample_answers),
            "general_answers": len(evaluation.general_answers),
            "seconds": self.seconds,
            "causes": self.causes,
        }


def sample_count(environment: Mapping[str, str]) -> int:
    """Return the number of sample answers that the operator set; 0 makes none."""
    return int(environment.get(SAMPLES_VARIABLE) or DEFAULT_SAMPLES)


def evaluate_run(
    context: TrainingContext,
    progress: Progress,
    inputs: TrainingInputs,
    stop: StopRequests,
    tries: int = 1,
    samples: int | None = None,
    working: Callable[[], None] = lambda: None,
    advance: Callable[[str, int, int], None] = lambda *_: None,
    training_seconds: float = 0.0,
) -> Measured:
    """Measure the adapter of a finished run against its base.

    Args:
        inputs: locations of the run's files.
        tries: number of attempts at the run that reached this point, including this one.
        samples: number of sample answers; None: the environment's setting.
        working: called between rows and tokens, to report that the run continues.
        advance: called with an activity, how much of it is done, and its total.
        training_seconds: duration of the training, which limits the time for sample answers (:func:`seconds_for`).

    Raises:
        StopRequested: a stop was requested. Nothing is kept; a resumed run measures again.
    """
    began = time.monotonic()
    work = _Evaluation(context, inputs, progress.trained_tokens, _check_of(context, stop, working), advance)
    if tries <= MAX_TRIES:
        answer_count = sample_count(os.environ) if samples is None else samples
        work.attempt("Loss and token accuracy", work.score)
        work.attempt("Preference between the answers", work.prefer)
        work.attempt("Prompts of answers", lambda: work.read(answer_count))
        if not context.plan.contract.artifact.publish:  # otherwise the publisher uses the served model
            # Processes that share the base must all do the same, and their clocks differ.
            bounded = not context.budget.shard_base
            budget = seconds_for(training_seconds) if bounded else math.inf
            work.attempt("Sample answers", lambda: work.answer(began + budget))
    else:
        work.causes.append("interrupted")
        work.notes.append("Nothing was measured: the trainer was ended during every attempt.")
    if context.distributed.is_main:
        rows = work.rows_to_serve().model_copy(update={"seconds": time.monotonic() - began})
        write_json(context.run_dir / EVALUATION_ROWS_NAME, rows.model_dump(mode="json"))
    return Measured(work.result(), time.monotonic() - began, work.causes)


PARSERS: dict[MethodType, Callable[[bytes, int], TrainingRow]] = {
    MethodType.SUPERVISED: parse_row,
    MethodType.DPO: parse_chosen,
    MethodType.KTO: parse_rated_row,
}
"""Functions that read a line's chat with the answer that the adapter should give."""


class _Evaluation:
    """The parts of a self-evaluation, each of which may fail independently."""

    def __init__(
        self,
        context: TrainingContext,
        inputs: TrainingInputs,
        trained_tokens: int,
        check: Callable[[], None],
        advance: Callable[[str, int, int], None],
    ) -> None:
        self._context, self._inputs, self._check, self._advance = context, inputs, check, advance
        self._trained_tokens = trained_tokens
        self._seed = context.plan.contract.exec.seed
        self.notes: list[str] = []
        self.causes: list[str] = []
        data = context.data
        self._source = RowSource.VALIDATION_FILE if inputs.validation else RowSource.HELD_OUT
        self._rows: Sequence[Example] = data.validation
        self._places: Sequence[int] = preferred_places(data.validation)
        if not self._places:
            if len(data.validation):
                self.notes.append("No held-out row has an answer that is rated good, so training rows are used.")
            self._source, self._rows = RowSource.TRAINING, _TrainingRows(context)
            self._places = np.flatnonzero(np.isin(data.training, preferred_places(data.rows))).tolist()
        self._scored: dict[str, Any] = {
            "rows": 0,
            "held_out_copies": 0,
            "tokens": 0,
            "loss": None,
            "token_accuracy": None,
        }
        self._chosen: list[Row] = []
        self._tuned: dict[int, RowScore] = {}
        self._preferred: PreferredAnswers | None = None
        self._prompts: list[SamplePrompt] = []
        self._general: list[list[int]] = []
        self._end_ids: frozenset[int] = frozenset()
        self._answers = Answers()

    def attempt(self, noun: str, part: Callable[[], None]) -> None:
        """Run a part, or note why it was not possible."""
        try:
            part()
            return
        except (StopRequested, PeerLost):
            raise
        except Exception as error:
            # The adapter is finished: an error of its measurement must not fail the run.
            if under_torchrun() and is_peer_lost(error):
                raise PeerLost(str(error)) from error
            traceback.print_exc()
            code = _code_of(error)
        self.causes.append(code)
        self.notes.append(f"{noun} could not be made ({code}); the trainer's log has the reason.")
        gc.collect()  # not above, where the exception's frames still hold the failed pass's tensors
        # After some errors a device refuses everything; the adapter is written, and the run has succeeded.
        with suppress(RuntimeError):
            torch.cuda.empty_cache()

    def score(self) -> None:
        """Measure loss and token accuracy."""
        if not self._places:
            self.notes.append("No row has an answer that is rated good, so nothing is compared.")
            return
        numbers = choose_rows(
            lambda number: sum(self._answer(number).lengths), len(self._places), self._trained_tokens, self._seed
        )
        rows = self._chosen = [self._answer(number) for number in numbers]
        copies = frozenset[int]() if self._source is RowSource.TRAINING else self._context.data.copies
        passes = count(0)

        def check() -> None:
            # Each row is scored twice, by the base and by the adapter.
            if (number := next(passes)) % 2 == 0:
                self._advance("scored_rows", number // 2, len(rows))
            self._check()

        with self._context.model.disable_adapter():
            base = score_rows(self._context, rows, check)
        tuned = score_rows(self._context, rows, check)
        self._advance("scored_rows", len(rows), len(rows))
        self._tuned = dict(zip(numbers, tuned, strict=True))
        self._scored = {
            "rows": len(rows),
            "held_out_copies": len(copies.intersection(self._places[number] for number in numbers)),
            "tokens": sum(row_score.targets for row_score in base),
            "loss": compare_losses(base, tuned),
            "token_accuracy": compare_accuracies(base, tuned),
        }
        if self._scored["loss"] is None:
            self.notes.append("A loss is not finite, so losses are not compared.")

    def prefer(self) -> None:
        """Measure in how many of the scored pairs the preferred answer is the more likely one."""
        method = self._context.method
        if not (self._tuned and isinstance(method, DirectPreference)):
            return
        pairs = [cast("Pair", self._rows[self._places[number]]) for number in self._tuned]
        rejected = score_rows(self._context, [pair.rejected for pair in pairs], self._check)
        self._preferred = compare_preferences(
            "parent" if self._context.plan.parent else "base",
            method.preferred_before(pairs),
            [_mean_loss(good) < _mean_loss(bad) for good, bad in zip(self._tuned.values(), rejected, strict=True)],
        )

    def _answer(self, number: int) -> Row:
        """Return the chat of one of the rows whose answer the adapter should give."""
        return self._rows[self._places[number]].answer

    def read(self, answer_count: int) -> None:
        """Read the prompts of ``answer_count`` sample answers, and of the general questions."""
        inputs = self._inputs
        tokenizer = Tokenizer.load(self._context.base, ChatOptions.of(self._context.plan.contract.data))
        self._end_ids, self._general = tokenizer.end_ids, general_prompts(tokenizer)
        if not answer_count:
            self.notes.append("Sample answers are left out because of the operator's setting.")
            return
        lines = [self._answer(number).line for number in shuffled(len(self._places), self._seed, MAX_CANDIDATES)]
        path = Path((self._source is RowSource.VALIDATION_FILE and inputs.validation) or inputs.train)
        positions = self._context.config.max_positions or MAX_PROMPT_TOKENS + SAMPLE_TOKENS
        limit = min(MAX_PROMPT_TOKENS, positions - SAMPLE_TOKENS)
        parse = PARSERS[self._context.plan.contract.method.type]
        self._prompts = read_prompts(path, lines, tokenizer, answer_count, limit, parse)
        if not self._prompts:
            self.notes.append(f"No row has a prompt of at most {limit} tokens for a sample answer.")

    def answer(self, deadline: float) -> None:
        """Generate sample and general answers with the trainer's own model.

        Args:
            deadline: monotonic seconds; see :func:`answer_in_time`.
        """

        def ask(prompts: Sequence[list[int]], max_tokens: int) -> tuple[list[WrittenAnswer], list[WrittenAnswer]]:
            return answer_both(self._context, prompts, self._end_ids, self._check, max_tokens)

        self._answers = answer_in_time(self.rows_to_serve(), ask, deadline, self._advance)
        self.notes += self._answers.notes

    def rows_to_serve(self) -> EvaluationRows:
        """Return the evaluated rows and prompts for the publisher."""
        rows = [row.unweighted() for row in self._chosen]
        return EvaluationRows(
            rows=tuple(
                EvaluationRow(token_ids=tuple(row.ids.tolist()), positions=tuple(row.weights.nonzero()[0].tolist()))
                for row in rows
            ),
            samples=tuple(self._prompts),
            general=tuple(self._general),
        )

    def result(self) -> SelfEvaluation:
        """Return the measurements."""
        return SelfEvaluation(
            source=self._source,
            rows_available=len(self._places),
            preferred=self._preferred,
            precision=_precision(self._context),
            answers_from=AnswerSource.TRAINER if self._answers.samples or self._answers.general else None,
            sample_answers=self._answers.samples,
            general_answers=self._answers.general,
            notes=tuple(self.notes),
            **self._scored,
        )


def _mean_loss(score: RowScore) -> float:
    return score.loss / score.weight


class _TrainingRows(Sequence[Example]):
    """The training rows by their place, read on demand."""

    def __init__(self, context: TrainingContext) -> None:
        self._data = context.data

    def __len__(self) -> int:
        return len(self._data.training)

    @overload
    def __getitem__(self, place: int) -> Example: ...
    @overload
    def __getitem__(self, place: slice) -> list[Example]: ...
    def __getitem__(self, place: int | slice) -> Example | list[Example]:
        if isinstance(place, slice):
            return [self._data.row(number) for number in range(*place.indices(len(self)))]
        row: Example = self._data.row(place)
        return row


def _check_of(context: TrainingContext, stop: StopRequests, working: Callable[[], None]) -> Callable[[], None]:
    """Return a function that reports activity, and raises when a stop was requested. Processes that share the base must
    all stop at the same place, so they never stop here.
    """

    def check() -> None:
        working()
        if context.budget.shard_base:
            return
        if stop.cancel_requested:
            raise StopRequested(EXIT_CANCELLED)
        if stop.pause_requested:
            raise StopRequested(EXIT_PAUSED)

    return check


def _precision(context: TrainingContext) -> str:
    """Return the precision in which the trainer holds the base."""
    base = context.plan.contract.quant.base
    if base is not BaseQuant.NONE:
        return base.value
    weights: torch.Tensor = context.model.get_base_model().get_input_embeddings().weight
    return str(weights.dtype).removeprefix("torch.")


def _code_of(error: Exception) -> str:
    if isinstance(error, MensError):
        return str(error.code)
    return str(Code.OUT_OF_MEMORY if is_out_of_memory(error) else Code.INTERNAL_ERROR)
