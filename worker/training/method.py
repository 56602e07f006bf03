"""A training method: how rows are read from files, how they become micro-batches, and how these become a loss.

This is all that the trainer knows about a method: steps, memory, distribution, checkpoints, telemetry and the adapter
are the same for all methods. Only the method itself looks inside its rows, batches and losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar

import torch
from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from shared.contract.plan import TrainingRun
from worker.training.data.dataset import Data
from worker.training.data.prepared import Row

if TYPE_CHECKING:
    from worker.training.metrics import Score
    from worker.training.trainer import TrainingContext


class Example(Protocol):
    """A row of a method, as the trainer sees it."""

    @property
    def lengths(self) -> Sequence[int]:
        """Number of tokens of each sequence that the model computes for the row."""

    @property
    def weight_sum(self) -> float:
        """Contribution of the row to the divisor of its step's loss."""

    @property
    def weight(self) -> float:
        """Weight of the whole row: scales its share of the loss, not of the divisor."""

    @property
    def answer(self) -> Row:
        """The row's chat with the answer that the adapter should give, for the self-evaluation."""

    @property
    def is_wanted(self) -> bool:
        """True if the adapter should give that answer; a rated answer may be bad."""

    def unweighted(self) -> Self:
        """Return the row without its own weight, as validation uses it."""


class Batch(Protocol):
    """Tensors of one forward and backward pass, on the CPU, as the trainer sees them."""

    @property
    def size(self) -> int:
        """Positions computed, padding included."""

    @property
    def weight_sum(self) -> float:
        """Sum of its rows' ``weight_sum``."""

    @property
    def target_count(self) -> int:
        """Number of predictions, each right or wrong."""


class BatchLoss(NamedTuple):
    """Outcome of a micro-batch.

    Attributes:
        loss: sum of its losses divided by the step's divisor, a scalar to differentiate.
        correct: number of its correct targets.
        sums: detached scalars by name, which are added over micro-batches and processes.
    """

    loss: torch.Tensor
    correct: torch.Tensor
    sums: Mapping[str, torch.Tensor] = {}


RowT = TypeVar("RowT", bound=Example)
BatchT = TypeVar("BatchT", bound=Batch)


class Method(Protocol[RowT, BatchT]):
    """A training method: rows → micro-batches → loss.

    Attributes:
        sums: names of the sums that :meth:`loss` returns.
        carried: files of the run folder that belong to every checkpoint.
    """

    sums: Sequence[str] = ()
    carried: Sequence[str] = ()

    def read(self, run: TrainingRun, tokenizer: PreTrainedTokenizerBase, vocab: int, cache: Path) -> Data[RowT]:
        """Encode the plan's files, or find them encoded in the cache.

        Raises:
            MensError: the data does not fit the plan.
        """

    def micro_batches(self, rows: Sequence[RowT], token_budget: int, *, pad_token: int, packed: bool) -> list[BatchT]:
        """Divide rows (one or more) into micro-batches of at most `token_budget` tokens; a longer row gets its own
        micro-batch.

        Args:
            packed: whether the model can keep documents apart in one sequence; otherwise rows are padded.
        """

    def empty_batch(self) -> BatchT:
        """Return a batch of the same shape with a few positions and no targets, for a process that has no rows while
        others have some.
        """

    def ahead(self, rows: Sequence[RowT]) -> Sequence[RowT]:  # noqa: ARG002
        """Return the rows that the policy must score, without gradients, before any loss of ``rows`` is computed; may
        be empty.
        """
        return ()

    def look_ahead(self, model: PeftModel, batches: Iterable[BatchT], device: torch.device) -> list[float]:  # noqa: ARG002
        """Return sums over micro-batches of these rows, which are then added over processes; called without gradients."""
        return []

    def settle(self, sums: Sequence[float]) -> None:  # noqa: ARG002
        """Take the sums of :meth:`look_ahead` over all processes, for the losses that follow."""
        return

    def loss(self, model: PeftModel, batch: BatchT, device: torch.device, divisor: float = 1.0) -> BatchLoss:
        """Return the loss of a micro-batch, divided by ``divisor``."""

    def prepare(self, context: TrainingContext, resume: Path | None, working: Callable[[], None]) -> None:  # noqa: ARG002
        """Do the work that is needed once before the first step of an attempt.

        Args:
            resume: the checkpoint that the run resumes from.
            working: called between parts, to report that the run continues.
        """
        return

    def check_first_step(self, context: TrainingContext, score: Score, rows: int) -> None:  # noqa: ARG002
        """Check the score of a run's first step, before anything is changed."""
        return

    def metrics(self, sums: Mapping[str, float], rows: int) -> dict[str, float]:  # noqa: ARG002
        """Return a step's further metrics from its sums; ``rows`` is the number of its rows."""
        return {}

    def warning(self, metrics: Mapping[str, float]) -> dict[str, Any] | None:  # noqa: ARG002
        """Return a telemetry event's payload if the metrics of the steps so far are a reason to warn."""
        return None
