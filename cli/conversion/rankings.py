"""Reads a list of answers with scores, as in UltraFeedback, as a preference: the best of them over the worst."""

from __future__ import annotations

import math
from typing import Any

from cli.conversion.outcomes import Dropped, DropReason, Row
from shared.datasets.forms.recognition import (
    CHOSEN,
    QUESTIONS,
    RANKED_ANSWERS,
    RANKED_TEXTS,
    REJECTED,
    SCORE_KEYS,
    SCORE_LISTS,
)
from shared.datasets.rows import RowCode

LEAST_ANSWERS = 2
ScoredText = tuple[float, str]


def best_and_worst(row: Row) -> Row:
    """Return the best answer as chosen and the worst as rejected, with their prompt; the other answers are left out.

    Raises:
        Dropped: ``ROW_FIELD_MISSING``: it has no question, or fewer than two answers with a score;
            ``no_answer_better``: all have the same score.
    """
    row = {key.lower(): value for key, value in row.items()}
    question = next((name for name in QUESTIONS if row.get(name)), None)
    answers = next((name for name in RANKED_ANSWERS if isinstance(row.get(name), list)), None)
    if question is None or answers is None:
        raise Dropped(RowCode.ROW_FIELD_MISSING)
    scored = _scored(row, row[answers])
    if len(scored) < LEAST_ANSWERS:
        raise Dropped(RowCode.ROW_FIELD_MISSING)
    best, worst = (choose(scored, key=lambda answer: answer[0]) for choose in (max, min))
    if best[0] == worst[0]:
        raise Dropped(DropReason.NO_ANSWER_BETTER)
    rest = {key: value for key, value in row.items() if key not in (question, answers, *SCORE_LISTS)}
    return {**rest, "prompt": row[question], CHOSEN: best[1], REJECTED: worst[1]}


def _scored(row: Row, answers: list[Any]) -> list[ScoredText]:
    """Return the answers that have a score of the first kind that is usable; kinds are not mixed, because their scales differ."""
    for name in SCORE_LISTS:
        if isinstance(scores := row.get(name), list) and len(scores) == len(answers):
            pairs = [(_number(score), _text(answer)) for score, answer in zip(scores, answers, strict=True)]
            return [(score, text) for score, text in pairs if score is not None and text]
    for key in SCORE_KEYS:
        pairs = [(_number(answer.get(key)), _text(answer)) for answer in answers if isinstance(answer, dict)]
        usable = [(score, text) for score, text in pairs if score is not None and text]
        if len(usable) >= LEAST_ANSWERS:
            return usable
    return []


def _text(answer: Any) -> str:
    if isinstance(answer, dict):
        answer = next((answer[key] for key in RANKED_TEXTS if answer.get(key)), "")
    return answer if isinstance(answer, str) else ""


def _number(value: Any) -> float | None:
    """Return a value as a score; None if it is not a finite number, e.g. a boolean or ``N/A``."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        score = float(value)
    except (ValueError, OverflowError):
        return None
    return score if math.isfinite(score) else None
