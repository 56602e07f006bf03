"""A file of cycles: read line by line, within limits, with errors that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.errors import Code, InvalidRequest
from shared.gates import cycles_file
from shared.gates.cycles_file import read_cycles
from tests.support.scorecards import promotion_cycle


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "cycles.jsonl"
    path.write_text("".join(promotion_cycle(seed, tasks=4).model_dump_json() + "\n" for seed in (1, 2)))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(InvalidRequest) as refused:
        read_cycles(path)
    assert (refused.value.code, refused.value.param) == (Code.REQUEST_INVALID, "cycles")
    return refused.value.message


def test_each_line_is_a_cycle(path: Path) -> None:
    assert read_cycles(path) == (promotion_cycle(1, tasks=4), promotion_cycle(2, tasks=4))


def test_a_line_that_is_not_a_cycle_is_named(path: Path) -> None:
    path.write_text(path.read_text().replace('"attempts":1', '"attempts":0', 1))
    assert "Line 1 is not a cycle" in refusal(path)
    assert "events.0.attempts" in refusal(path)
    path.write_text("{\n")
    assert "Line 1 is not a cycle" in refusal(path)


@pytest.mark.parametrize(
    ("bound", "value", "message"),
    [("MAX_CYCLES", 1, "more than 1 cycles"), ("MAX_EVENTS", 15, "16 events together"), ("MAX_BYTES", 10, "more than")],
)
def test_bounds(path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, message: str) -> None:
    monkeypatch.setattr(cycles_file, bound, value)
    assert message in refusal(path)
