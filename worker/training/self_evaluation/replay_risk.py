"""Rows of the replay file whose loss has risen since the run began: rows that the model is forgetting are replayed
first.

Before the first step the watched rows (`worker/training/data/row_order.py:RowOrder.watched`) are scored for reference, and
before each further epoch they are scored again. The rows of an epoch are part of its checkpoints, so a resumed run
replays the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from worker.child_runtime import EXIT_CANCELLED, EXIT_PAUSED, StopRequested, StopSignals
from worker.training.checkpoint import Progress
from worker.training.early_stopping import is_exhausted
from worker.training.reporting.telemetry import Telemetry
from worker.training.self_evaluation.scores import score_rows
from worker.training.trainer import TrainingContext

AT_RISK_NATS = 0.1
"""A row is at risk if its loss per token has risen by more than this, as in the original."""


def rank_by_risk(rows: Sequence[int], reference: Sequence[float], losses: Sequence[float]) -> list[int]:
    """Return the rows whose loss has risen by more than the threshold, the largest rise first."""
    risen = [(after - before, row) for row, before, after in zip(rows, reference, losses, strict=True)]
    # A row whose loss is no longer finite is the most at risk.
    return [row for rise, row in sorted(risen, key=_largest_first) if not rise <= AT_RISK_NATS]


def _largest_first(risen: tuple[float, int]) -> tuple[bool, float, int]:
    rise, row = risen
    return not math.isnan(rise), -rise, row


@dataclass(frozen=True)
class ReplayRisk:
    """The rows at risk, epoch by epoch. Its state is in the run's progress."""

    context: TrainingContext
    progress: Progress
    telemetry: Telemetry
    stop: StopSignals

    def before_epoch(self, epoch: int) -> Sequence[int]:
        """Return the rows that the epoch replays first, the largest risk first; none in the first epoch.

        Raises:
            StopRequested: a stop was requested while the rows were scored. The last checkpoint is of this step.
        """
        order, progress = self.context.order, self.progress
        if not order.watched or len(order.epochs) == 1:
            return ()
        if is_exhausted(progress.metrics, self.context.plan.contract.exec.early_stopping_patience):
            return ()  # the epoch does not begin
        if progress.replay_epoch != epoch:  # else a checkpoint within the epoch has them
            losses = self._losses()
            progress.replay_reference = progress.replay_reference or losses
            progress.replay_at_risk = rank_by_risk(order.watched, progress.replay_reference, losses)
            progress.replay_epoch = epoch
            self._report(losses)
        return progress.replay_at_risk

    def _losses(self) -> list[float]:
        """Return the mean loss of each watched row; every process gets the same values.

        Each process scores its share. If the base is sharded, every process scores all rows, because a forward pass
        needs all processes.
        """
        watched, distributed = self.context.order.watched, self.context.distributed
        shards, rank = (1, 0) if self.context.budget.shard_base else (distributed.size, distributed.rank)
        mine = range(rank, len(watched), shards)
        scores = score_rows(self.context, [self.context.data.replay[watched[place]] for place in mine], self._check)
        if len(mine) < -(-len(watched) // shards):
            self._check()  # the others have one row more, and wait for each other before it
        counts = shards > 1 or distributed.is_main
        losses = [0.0] * len(watched)
        for place, score in zip(mine, scores, strict=True):
            losses[place] = score.loss / score.weight if counts and score.weight else 0.0
        return distributed.sum(losses)

    def _check(self) -> None:
        """Report activity, and stop if any process was asked to: all processes score the same number of rows, so they
        all stop after the same one.
        """
        self.telemetry.working("replay")
        signals = [self.stop.cancel_requested, self.stop.pause_requested]
        cancel, pause = self.context.distributed.largest(signals)
        if cancel:
            raise StopRequested(EXIT_CANCELLED)
        if pause:
            raise StopRequested(EXIT_PAUSED)

    def _report(self, losses: Sequence[float]) -> None:
        progress = self.progress
        pairs = zip(progress.replay_reference, losses, strict=True)
        rises = [after - before for before, after in pairs if math.isfinite(after - before)]
        self.telemetry.replay(
            {
                "epoch": progress.replay_epoch,
                "watched": len(losses),
                "at_risk": len(progress.replay_at_risk),
                "mean_rise": sum(rises) / len(rises) if rises else None,
                "largest_rise": max(rises, default=None),
            }
        )
