"""Method ``prefer``: the best and the worst of several answers, by a grader."""

from __future__ import annotations

from typing import Any

from corpus.generation.asking import RowDropped
from corpus.generation.methods.method import RowRequests
from corpus.generation.model_columns import PreferColumn
from corpus.verdicts import VerdictCode


def prefer(column: PreferColumn, row: RowRequests) -> dict[str, Any]:
    """Return the answers with the highest and the lowest score, ``chosen`` and ``rejected``, and their scores.

    Raises:
        RowDropped: ``NO_PREFERENCE``: all answers are the same, or all have the same score.
    """
    assert column.prompt is not None
    prompt = row.fill(column.prompt)
    scores: dict[str, float] = {}
    for sample in range(column.n):
        try:
            text = row.ask(column, prompt, sample=sample)
            if text not in scores:
                scores[text] = row.score(column, column.grader, text)
        except RowDropped as drop:
            if drop.code is VerdictCode.SECRET:
                raise
    # The first of several equal answers, in the order of the samples.
    best = max(scores, key=lambda text: scores[text], default="")
    worst = min(scores, key=lambda text: scores[text], default="")
    if not scores or scores[best] <= scores[worst]:
        raise RowDropped(VerdictCode.NO_PREFERENCE)
    row.checks[column.name] = {"answers": len(scores), "chosen": scores[best], "rejected": scores[worst]}
    return {
        "chosen": best,
        "rejected": worst,
        "chosen_score": scores[best],
        "rejected_score": scores[worst],
    }
