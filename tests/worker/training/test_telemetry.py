"""Telemetry and metrics: lines that anyone can parse, at any moment."""

from __future__ import annotations

import csv
import json
import time

import pytest

import worker.training.telemetry
from worker.training.telemetry import METRIC_COLUMNS, STEPS_BEFORE_ETA, Pace, Score, Telemetry


def events(folder):
    return [json.loads(line) for line in (folder / "telemetry.jsonl").read_text().splitlines()]


def step(telemetry: Telemetry, number: int, loss: float = 2.0, norm: float = 1.0) -> None:
    telemetry.step(number, 0, Score(loss, 0.5, 8), norm=norm, rate=1e-3, tokens=32)


def test_every_line_is_there_at_once(tmp_path):
    telemetry = Telemetry(tmp_path, 10, [])
    before = time.time_ns() // 1_000_000
    telemetry.emit("train_start", {"seed": 1})
    line = events(tmp_path)[0]
    assert (line["event"], line["payload"]) == ("train_start", {"seed": 1})
    assert before <= line["ts_ms"] <= time.time_ns() // 1_000_000


def test_a_second_run_in_the_folder_appends(tmp_path):
    for _ in range(2):
        Telemetry(tmp_path, 10, []).emit("train_start", {})
    assert len(events(tmp_path)) == 2


def test_step_event(tmp_path):
    step(Telemetry(tmp_path, 10, []), 3)
    payload = events(tmp_path)[0]["payload"]
    assert (payload["step"], payload["total_steps"], payload["loss"], payload["valid_tokens"]) == (3, 10, 2.0, 8)
    assert payload["supervised_ratio_pct"] == 25.0
    assert payload["progress_fraction"] == 0.3
    assert payload["eta_seconds_remaining"] is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_null(tmp_path, value):
    telemetry = Telemetry(tmp_path, 10, [])
    step(telemetry, 1, loss=value, norm=value)
    payload = events(tmp_path)[0]["payload"]
    assert payload["loss"] is None
    assert payload["grad_norm"] is None
    assert telemetry.rows == []


def test_metrics_of_a_step_share_a_row(tmp_path):
    telemetry = Telemetry(tmp_path, 10, [{"step": 1, "train_loss": 3.0, "train_accuracy": 0.1}])
    step(telemetry, 2)
    telemetry.validation(2, Score(1.5, 0.25, 4))
    telemetry.validation(2, None)
    step(telemetry, 3)
    telemetry.save_metrics()
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert tuple(rows[0]) == METRIC_COLUMNS
    assert rows[1:] == [["1", "3.0", "0.1", "", ""], ["2", "2.0", "0.5", "1.5", "0.25"], ["3", "2.0", "0.5", "", ""]]


def test_checkpoint_event_carries_the_metrics_of_its_step(tmp_path):
    telemetry = Telemetry(tmp_path, 10, [])
    step(telemetry, 4)
    telemetry.checkpoint(4, tmp_path / "step-00000004")
    payload = events(tmp_path)[-1]["payload"]
    assert payload["folder"] == "step-00000004"
    assert payload["metrics"] == {"step": 4, "train_loss": 2.0, "train_accuracy": 0.5}


def test_pace_and_time_left(monkeypatch):
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr(worker.training.telemetry.time, "monotonic", lambda: next(clock))
    pace = Pace(total_steps=20)
    seen = [pace.step(done, tokens=100) for done in range(1, 11)]
    assert all(one["steps_per_sec_ema"] == pytest.approx(0.5) and one["tokens_per_sec"] == 50 for one in seen)
    assert [one["eta_seconds_remaining"] for one in seen[: STEPS_BEFORE_ETA - 1]] == [None] * (STEPS_BEFORE_ETA - 1)
    assert seen[-1]["eta_seconds_remaining"] == pytest.approx(20.0)
    assert seen[-1]["progress_fraction"] == 0.5


def test_pace_smooths(monkeypatch):
    clock = iter([0.0, 1.0, 2.0, 12.0])
    monkeypatch.setattr(worker.training.telemetry.time, "monotonic", lambda: next(clock))
    pace = Pace(total_steps=3)
    rates = [pace.step(done, tokens=1)["steps_per_sec_ema"] for done in (1, 2, 3)]
    assert rates == pytest.approx([1.0, 1.0, 1 / (1 + 0.2 * 9)])
