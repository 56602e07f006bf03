"""The self-evaluation of the served adapter: its last progress matches the completed work, and notes count the omitted
parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.model_card.evaluation_rows import EvaluationRow, EvaluationRows, RowScore, SamplePrompt, WrittenAnswer
from shared.model_card.self_evaluation import RowSource, SelfEvaluation
from worker.jobs.served_evaluation import ServedPair, _counts, seconds_left
from worker.run_folder import SUMMARY_NAME, write_json

BASE = {"name": "tiny", "dtype": "float32", "twin_of": None}


class Replica:
    """Scores every row alike and gives every prompt one answer."""

    def score_rows(self, _model: str, rows: Sequence[EvaluationRow]) -> list[RowScore]:
        return [RowScore(1.0, 1.0, 1.0, 1) for _ in rows]

    def answers(self, _model: str, prompts: Sequence[list[int]], _max_tokens: int) -> list[WrittenAnswer]:
        return [WrittenAnswer("yes", ended=True) for _ in prompts]


def rows_of(scored: int, samples: int) -> EvaluationRows:
    prompt = SamplePrompt(line=1, role="user", text="?", turns=1, ids=[1], reference="yes")
    row = EvaluationRow(token_ids=(1, 2), positions=(1,))
    return EvaluationRows(rows=(row,) * scored, samples=(prompt,) * samples)


@given(scored=st.integers(0, 40), samples=st.integers(0, 12), is_late=st.booleans())
def test_the_last_progress_is_what_was_done(scored: int, samples: int, is_late: bool) -> None:
    seen: dict[str, tuple[int, int]] = {}

    def advance(activity: str, done: int, total: int) -> None:
        seen[activity] = (done, total)

    replica: Any = Replica()
    before = SelfEvaluation(
        source=RowSource.HELD_OUT, rows=scored, rows_available=scored, tokens=1, loss=None, token_accuracy=None
    )
    pair = ServedPair(replica, "tiny@1", BASE, advance)
    found = pair.measure(before, rows_of(scored, samples), -1.0 if is_late else 60.0)
    done = {"scored_rows": found.served.rows if found.served else 0, "sample_answers": len(found.sample_answers)}
    for activity, total in (("scored_rows", scored), ("sample_answers", samples)):
        assert seen.get(activity, (0, 0)) == (done[activity], total)
        left_out = any(note.startswith(f"{done[activity]} of {total} ") for note in found.notes)
        assert left_out == (done[activity] < total)
    words = _counts(found)
    assert (f"{scored} rows" in words) == (0 < scored == done["scored_rows"])
    assert (f"{samples} sample answers" in words) == (0 < samples == done["sample_answers"])


@pytest.mark.parametrize(
    ("recorded", "spent", "seconds"),
    [
        ({"training_summary": {"wall_secs": 1800.0}}, 0.0, 180.0),
        ({"training_summary": {"wall_secs": 1800.0}}, 110.0, 70.0),
        ({"training_summary": {"wall_secs": 1800.0}}, 175.0, 15.0),
        ({"training_summary": {"wall_secs": 20.0}}, 1.0, 15.0),
        ({}, 4.0, 15.0),
        (None, 0.0, 15.0),
    ],
)
def test_the_trainers_part_is_taken_off_the_served_ones_time(
    recorded: dict[str, Any] | None, spent: float, seconds: float, tmp_path: Path
) -> None:
    if recorded is not None:
        write_json(tmp_path / SUMMARY_NAME, recorded)
    assert seconds_left(tmp_path, spent) == seconds
