"""The self-evaluation of a finished run. It fails no run: what cannot be measured is left out, with a note that says why.

It comes after the adapter is written, so nothing of it can change a byte of one. Equal runs measure equal numbers.
"""

from __future__ import annotations

import gc
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, overload

import torch

from shared.contract.plan import TrainingInputs
from shared.errors import Code, MensError
from shared.model_card.self_evaluation import RowSource, SampleAnswer, SelfEvaluation
from shared.tokenization.template_arguments import ChatOptions
from shared.tokenization.tokenizer import Tokenizer
from worker.child_runtime import EXIT_CANCELLED, EXIT_PAUSED, PeerLost, StopRequested, is_out_of_memory
from worker.training.checkpoint import Progress
from worker.training.method import Example
from worker.training.self_evaluation.sample_answers import (
    MAX_CANDIDATES,
    MAX_NEW_TOKENS,
    MAX_PROMPT_TOKENS,
    read_prompts,
    sample_answers,
)
from worker.training.self_evaluation.scores import (
    choose_rows,
    compare_accuracies,
    compare_losses,
    score_rows,
    shuffled,
)
from worker.training.trainer import TrainingContext

SAMPLES_VARIABLE = "MENS_SAMPLE_ANSWERS"
DEFAULT_SAMPLES = 8
MAX_TRIES = 3
"""So often a run is ended while it measures itself; after that it finishes without."""


class StopRequests(Protocol):
    """Whether the worker wants the process to end."""

    @property
    def pause_requested(self) -> bool: ...
    @property
    def cancel_requested(self) -> bool: ...


@dataclass
class Measured:
    """A self-evaluation, what it took, and the codes of what failed.

    Attributes:
        seconds: of the clock.
        causes: codes of what went wrong, for telemetry.
    """

    evaluation: SelfEvaluation
    seconds: float = 0.0
    causes: list[str] = field(default_factory=list)

    def payload(self) -> dict[str, Any]:
        """The telemetry event: numbers, and no text of a row."""
        found = self.evaluation
        return {
            "source": found.source.value,
            "rows": found.rows,
            "held_out_copies": found.held_out_copies,
            "tokens": found.tokens,
            "base_loss": found.loss and found.loss.base,
            "tuned_loss": found.loss and found.loss.tuned,
            "base_token_accuracy": found.token_accuracy and found.token_accuracy.base,
            "tuned_token_accuracy": found.token_accuracy and found.token_accuracy.tuned,
            "sample_answers": len(found.sample_answers),
            "seconds": self.seconds,
            "causes": self.causes,
        }


def sample_count(environment: Mapping[str, str]) -> int:
    """Sample answers that the operator wants; 0 makes none."""
    return int(environment.get(SAMPLES_VARIABLE) or DEFAULT_SAMPLES)


def evaluate_run(
    context: TrainingContext,
    progress: Progress,
    inputs: TrainingInputs,
    stop: StopRequests,
    tries: int = 1,
    samples: int | None = None,
    working: Callable[[], None] = lambda: None,
) -> Measured:
    """Measure the adapter of a finished run against its base.

    Args:
        inputs: where the run's files are.
        tries: how often attempts at the run have come this far, this one included.
        samples: sample answers; as the environment says when None.
        working: called between rows and tokens, to tell that the run goes on.

    Raises:
        StopRequested: a stop was requested. Nothing is kept; a run that goes on measures again.
    """
    began = time.monotonic()
    work = _Evaluation(context, inputs, progress.trained_tokens, _check_of(context, stop, working))
    if tries <= MAX_TRIES:
        work.attempt("Loss and token accuracy", work.score)
        work.attempt("Sample answers", lambda: work.answer(sample_count(os.environ) if samples is None else samples))
    else:
        work.causes.append("interrupted")
        work.notes.append("Nothing was measured: the trainer was ended each time while it did so.")
    return Measured(work.result(), time.monotonic() - began, work.causes)


class _Evaluation:
    """The parts of a self-evaluation, each of which may fail alone."""

    def __init__(
        self, context: TrainingContext, inputs: TrainingInputs, trained_tokens: int, check: Callable[[], None]
    ) -> None:
        self._context, self._inputs, self._check = context, inputs, check
        self._trained_tokens = trained_tokens
        self._seed = context.plan.contract.exec.seed
        held_out = bool(len(context.data.validation))
        self._rows: Sequence[Example] = context.data.validation if held_out else _TrainingRows(context)
        held = RowSource.VALIDATION_FILE if inputs.validation else RowSource.HELD_OUT
        self._source = held if held_out else RowSource.TRAINING
        self._scored: dict[str, Any] = {
            "rows": 0,
            "held_out_copies": 0,
            "tokens": 0,
            "loss": None,
            "token_accuracy": None,
        }
        self._answers: tuple[SampleAnswer, ...] = ()
        self.notes: list[str] = []
        self.causes: list[str] = []

    def attempt(self, what: str, part: Callable[[], None]) -> None:
        """Do a part, or note why it could not be done."""
        try:
            part()
            return
        except (StopRequested, PeerLost):
            raise
        except Exception as error:
            traceback.print_exc()
            code = _code_of(error)
        self.causes.append(code)
        self.notes.append(f"{what} could not be made ({code}); the trainer's log has the reason.")
        gc.collect()  # here, not above: the exception's frames hold what the failed pass had made
        # After some errors a device refuses everything; the adapter is written, and the run has succeeded.
        with suppress(RuntimeError):
            torch.cuda.empty_cache()

    def score(self) -> None:
        """Loss and token accuracy."""
        chosen = choose_rows(
            lambda number: sum(self._rows[number].lengths), len(self._rows), self._trained_tokens, self._seed
        )
        rows = [self._rows[number] for number in chosen]
        with self._context.model.disable_adapter():
            base = score_rows(self._context, rows, self._check)
        tuned = score_rows(self._context, rows, self._check)
        self._scored = {
            "rows": len(rows),
            "held_out_copies": len(self._context.data.copies.intersection(chosen)),
            "tokens": sum(one.targets for one in base),
            "loss": compare_losses(base, tuned),
            "token_accuracy": compare_accuracies(base, tuned),
        }
        if self._scored["loss"] is None:
            self.notes.append("A loss is not finite, so losses are not compared.")

    def answer(self, wanted: int) -> None:
        """Sample answers to so many rows."""
        if not wanted:
            self.notes.append("Sample answers are left out, as the operator has set.")
            return
        data, inputs = self._context.data, self._inputs
        tokenizer = Tokenizer.load(self._context.base, ChatOptions.of(self._context.plan.contract.data))
        lines = [data.probe_rows[number].line for number in shuffled(len(data.probe_rows), self._seed, MAX_CANDIDATES)]
        path = Path((self._source is RowSource.VALIDATION_FILE and inputs.validation) or inputs.train)
        positions = self._context.config.max_positions or MAX_PROMPT_TOKENS + MAX_NEW_TOKENS
        limit = min(MAX_PROMPT_TOKENS, positions - MAX_NEW_TOKENS)
        if prompts := read_prompts(path, lines, tokenizer, wanted, limit):
            self._answers = sample_answers(self._context, prompts, tokenizer.end_ids, self._check)
        else:
            self.notes.append(f"No row has a prompt of at most {limit} tokens for a sample answer.")

    def result(self) -> SelfEvaluation:
        """What was measured."""
        return SelfEvaluation(
            source=self._source,
            rows_available=len(self._rows),
            sample_answers=self._answers,
            notes=tuple(self.notes),
            **self._scored,
        )


class _TrainingRows(Sequence[Example]):
    """The training rows by their place, read when they are needed."""

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
    """Tells that the run goes on, and raises when a stop was requested. Processes that hold parts of the base must all stop at one place: none does."""

    def check() -> None:
        working()
        if context.budget.shard_base:
            return
        if stop.cancel_requested:
            raise StopRequested(EXIT_CANCELLED)
        if stop.pause_requested:
            raise StopRequested(EXIT_PAUSED)

    return check


def _code_of(error: Exception) -> str:
    if isinstance(error, MensError):
        return str(error.code)
    return str(Code.OUT_OF_MEMORY if is_out_of_memory(error) else Code.INTERNAL_ERROR)
