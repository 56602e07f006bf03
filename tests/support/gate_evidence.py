"""Evidence for gates: a training report, and runs whose scores a test chooses."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from shared.gates.evidence import (
    AdapterRef,
    AnswerPair,
    Evidence,
    RunScores,
    ScoredAnswer,
    ServedBaseRef,
    TrainingReport,
)

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NEW, OLD = AdapterRef(id="demo@1", digest="1" * 64), AdapterRef(id="demo@0", digest="0" * 64)
BASE = ServedBaseRef(name="tiny", digest="b" * 64)
TRAINED = TrainingReport(
    job_id="ftjob-1", device="cpu", tokens=100, supervised_tokens=40, truncation_fraction=0.1, tokens_per_second=50
)


def answer(score: float, *criteria: str) -> ScoredAnswer:
    """An answer to which every criterion gives the same score; it passes with a score of 1."""
    return ScoredAnswer(scores=dict.fromkeys(criteria, score), passed=score >= 1)


def run_scores(
    now: Sequence[float], before: Sequence[float] | None = None, *criteria: str, **changes: Any
) -> RunScores:
    """A run with one answer for each item; without answers of an incumbent if none are given."""
    old = [()] * len(now) if before is None else [(answer(score, *criteria),) for score in before]
    pairs = [
        AnswerPair(item_index=index, candidate=(answer(score, *criteria),), incumbent=beside)
        for index, (score, beside) in enumerate(zip(now, old, strict=True))
    ]
    fields = {"eval_id": "eval-1", "run_id": "evalrun-1", "measured_at": AT, "candidate": NEW.id}
    compared = {"incumbent": None if before is None else OLD.id, "pairs": tuple(pairs)}
    return RunScores.model_validate(fields | compared | changes)


def evidence(**changes: Any) -> Evidence:
    """Evidence of an adapter's training, without any run."""
    fields = {"adapter": NEW, "incumbent": OLD, "compared_with": OLD.id, "serving_base": BASE, "judged_at": AT}
    return Evidence.model_validate(fields | {"training": TRAINED} | changes)
