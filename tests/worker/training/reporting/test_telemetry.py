"""Telemetry and metrics: lines that are valid at every moment, and contain no text of the data."""

from __future__ import annotations

import csv
import errno
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import Code, JobFailed
from shared.preflight.activations import Recompute
from shared.preflight.training_time import Workload
from worker.child_runtime import StopRequested
from worker.run_folder import EVALUATION_NAME, EVALUATION_ROWS_NAME, TELEMETRY_NAME, read_json
from worker.training.reporting.events import SKIP_REASONS, TEXT_FIELDS
from worker.training.reporting.telemetry import METRIC_COLUMNS, Score, StepReport, Telemetry
from worker.training.reporting.throughput import MeasuredDevice
from worker.training.reporting.tracker_clients import TrackedStatus
from worker.training.reporting.trackers import Failure

SPECIFIED_STEP_FIELDS = [
    "epoch",
    "step",
    "optimizer_step",
    "loss",
    "lr",
    "learning_rate",
    "eta_seconds_remaining",
    "progress_fraction",
    "steps_per_sec_ema",
    "tokens_per_sec",
    "tokens_per_sec_is_proxy",
    "valid_tokens",
    "theoretical_tokens",
    "supervised_ratio_pct",
    "skip_no_supervised_positions",
    "skip_short_seq",
    "skip_curriculum",
    "skip_token_id_oob",
    "trajectory_weighted_pairs",
    "trajectory_clamped_pairs",
    "syntax_weight_sum",
]


def events(folder):
    return [json.loads(line) for line in (folder / "telemetry.jsonl").read_text().splitlines()]


def payload(folder, number=-1):
    return events(folder)[number]["payload"]


def report(number: int, loss: float = 2.0, norm: float = 1.0, **more) -> StepReport:
    fields = {"epoch": 0, "rate": 1e-3, "tokens": 32, "positions": 40, "micro_batches": 2, "rows": 4, **more}
    return StepReport(step=number, score=Score(loss, 0.5, 8), norm=norm, **fields)


@pytest.fixture
def open_telemetry() -> Iterator[Callable[..., Telemetry]]:
    """Makes a :class:`Telemetry`, whose file is closed after the test."""
    with ExitStack() as stack:
        yield lambda *args, **more: stack.enter_context(Telemetry(*args, **more))


# -- the self-evaluation ----------------------------------------------------------------------------------------------


@given(total=st.integers(1, 30), data=st.data())
def test_the_last_progress_of_the_self_evaluation_is_what_was_done(tmp_path_factory, total, data):
    """Progress is reported once a second, at the end of each part and before the result, however fast the run was."""
    done = data.draw(st.integers(0, total))
    folder = tmp_path_factory.mktemp("run")
    with Telemetry(folder, 1, []) as telemetry:
        for number in range(done + 1):
            telemetry.self_evaluation("scored_rows", number, total)
        telemetry.self_evaluated({"rows": done})
    kinds = [(line["event"], line["payload"]) for line in events(folder)]
    last = {"activity": "scored_rows", "items_done": done, "items_total": total}
    assert kinds[-2:] == [("self_evaluation_progress", last), ("self_evaluation", {"rows": done})]
    assert len(kinds) <= 4


# -- lines ------------------------------------------------------------------------------------------------------------


def test_every_line_is_there_at_once(tmp_path, open_telemetry):
    telemetry = open_telemetry(tmp_path, 10, [])
    before = time.time_ns() // 1_000_000
    telemetry.emit("train_start", {"seed": 1})
    line = events(tmp_path)[0]
    assert (line["event"], line["payload"]) == ("train_start", {"seed": 1})
    assert before <= line["ts_ms"] <= time.time_ns() // 1_000_000


def test_a_second_run_in_the_folder_appends(tmp_path, open_telemetry):
    for _ in range(2):
        open_telemetry(tmp_path, 10, []).emit("train_start", {})
    assert len(events(tmp_path)) == 2


# -- steps ------------------------------------------------------------------------------------------------------------


def test_step_event(tmp_path, open_telemetry):
    telemetry = open_telemetry(tmp_path, 10, [], skips={"short_seq": 3}, trajectory_clamped=2)
    telemetry.step(report(3, weighted_rows=1, syntax_weight_sum=8.5, token_budget=64))
    step = payload(tmp_path)
    assert set(SPECIFIED_STEP_FIELDS) <= step.keys()
    assert (step["step"], step["optimizer_step"], step["total_steps"], step["loss"]) == (3, 3, 10, 2.0)
    assert (step["tokens"], step["valid_tokens"], step["theoretical_tokens"]) == (32, 8, 40)
    assert (step["rows"], step["micro_batches"], step["token_budget"]) == (4, 2, 64)
    assert step["supervised_ratio_pct"] == 25.0
    assert step["progress_fraction"] == 0.3
    assert step["eta_seconds_remaining"] is None
    assert step["lr"] == step["learning_rate"] == 1e-3
    assert step["tokens_per_sec_is_proxy"] is False
    assert step["tokens_per_sec"] == pytest.approx(32 / step["step_seconds"])
    assert step["supervised_tokens_per_sec"] == pytest.approx(step["tokens_per_sec"] / 4)
    assert step["mfu"] is None
    assert step["peak_memory_bytes"] > 1 << 20
    assert (step["skip_short_seq"], step["skip_curriculum"]) == (3, 0)
    assert (step["trajectory_weighted_pairs"], step["trajectory_clamped_pairs"]) == (1, 2)
    assert step["syntax_weight_sum"] == 8.5


def test_mfu_and_memory_are_the_machines(tmp_path, open_telemetry):
    work = Workload(linears=1000, lora=10, attention=4, head=100, recompute=Recompute.NONE)
    telemetry = open_telemetry(
        tmp_path, 10, [], machine=MeasuredDevice(work=work, peak_flops=1e9, peak_memory=lambda: 77)
    )
    telemetry.step(report(1, attended_keys=320))
    step = payload(tmp_path)
    per_token = 4 * 1000 + 6 * 10 + 3 * 4 * 4 * 10 + 4 * 100 * 0.25
    assert step["mfu"] == pytest.approx(32 * per_token / step["step_seconds"] / 1e9)
    assert step["peak_memory_bytes"] == 77


def test_tokens_that_are_computed_once_for_two_answers_count_once_in_mfu(tmp_path, open_telemetry):
    work = Workload(linears=1000, lora=0, attention=0, head=0, recompute=Recompute.NONE)
    telemetry = open_telemetry(tmp_path, 10, [], machine=MeasuredDevice(work=work, peak_flops=1e9))
    telemetry.step(report(1, positions=24))
    step = payload(tmp_path)
    assert step["tokens_per_sec"] == pytest.approx(32 / step["step_seconds"])
    assert step["mfu"] == pytest.approx(24 * 4 * 1000 / step["step_seconds"] / 1e9)


def test_attended_keys_of_equal_rows_are_exact_without_a_count():
    assert report(1, tokens=32, rows=4).keys == 4 * (8 * 9 / 2)
    assert report(1, tokens=32, rows=1).keys == 32 * 33 / 2
    assert report(1, attended_keys=5).keys == 5
    lengths = (2, 30)
    assert report(1, tokens=32, rows=2).keys <= sum(length * (length + 1) / 2 for length in lengths)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_null(tmp_path, open_telemetry, value):
    telemetry = open_telemetry(tmp_path, 10, [])
    telemetry.step(report(1, loss=value, norm=value))
    assert payload(tmp_path)["loss"] is None
    assert payload(tmp_path)["grad_norm"] is None
    assert payload(tmp_path)["loss_ema"] is None
    assert telemetry.rows == []


def test_the_smoothed_loss_continues_after_a_resume(tmp_path, open_telemetry):
    (tmp_path / "whole").mkdir()
    (tmp_path / "resumed").mkdir()
    whole = open_telemetry(tmp_path / "whole", 10, [])
    for number, loss in enumerate((4.0, 2.0, 1.0), 1):
        whole.step(report(number, loss=loss))
    resumed = open_telemetry(tmp_path / "resumed", 10, [dict(row) for row in whole.rows[:2]])
    resumed.step(report(3, loss=1.0))
    assert payload(tmp_path / "whole")["loss_ema"] == pytest.approx(0.9 * (4 + 0.1 * (2 - 4)) + 0.1)
    assert payload(tmp_path / "resumed")["loss_ema"] == payload(tmp_path / "whole")["loss_ema"]


def test_skips_are_updated_and_strangers_refused(tmp_path, open_telemetry):
    telemetry = open_telemetry(tmp_path, 10, [], skips={"token_id_oob": 1})
    telemetry.skipped(curriculum=5)
    telemetry.step(report(1))
    assert telemetry.skip_fields() == {f"skip_{reason}": telemetry.skips[reason] for reason in SKIP_REASONS}
    assert (payload(tmp_path)["skip_token_id_oob"], payload(tmp_path)["skip_curriculum"]) == (1, 5)
    with pytest.raises(KeyError):
        telemetry.skipped(bad_mood=1)


# -- other events -----------------------------------------------------------------------------------------------------


def test_metrics_of_a_step_share_a_row(tmp_path, open_telemetry):
    telemetry = open_telemetry(tmp_path, 10, [{"step": 1, "train_loss": 3.0, "train_accuracy": 0.1}])
    telemetry.step(report(2))
    telemetry.validation(2, Score(1.5, 0.25, 4))
    telemetry.validation(2, None)
    telemetry.step(report(3))
    telemetry.save_metrics()
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert tuple(rows[0]) == METRIC_COLUMNS
    assert rows[1:] == [["1", "3.0", "0.1", "", ""], ["2", "2.0", "0.5", "1.5", "0.25"], ["3", "2.0", "0.5", "", ""]]


def test_checkpoint_event_carries_the_metrics_of_its_step(tmp_path, open_telemetry):
    telemetry = open_telemetry(tmp_path, 10, [])
    telemetry.step(report(4))
    telemetry.checkpoint(4, tmp_path / "step-00000004")
    assert payload(tmp_path)["folder"] == "step-00000004"
    assert payload(tmp_path)["metrics"] == {"step": 4, "train_loss": 2.0, "train_accuracy": 0.5}


def test_an_epochs_mean_is_of_its_own_steps_whoever_did_them(tmp_path, open_telemetry):
    telemetry = open_telemetry(tmp_path, 4, [{"step": 1, "train_loss": 9.0}, {"step": 3, "train_loss": 3.0}])
    telemetry.step(report(4, loss=2.0))
    folder = tmp_path / "step-00000004"
    telemetry.epoch_complete(1, steps=2, step=4, score=Score(1.5, 0.5, 9), val_steps=3, checkpoint=folder)
    assert payload(tmp_path) == {
        "epoch": 1,
        "avg_loss": 2.5,
        "val_loss": 1.5,
        "steps": 2,
        "val_steps": 3,
        "global_step": 4,
        "checkpoint": "step-00000004",
        "phase": None,
    }
    telemetry.epoch_complete(2, steps=0, step=4, score=None, val_steps=0, checkpoint=None)
    assert (payload(tmp_path)["avg_loss"], payload(tmp_path)["val_loss"], payload(tmp_path)["checkpoint"]) == (
        None,
    ) * 3


def test_a_phase_is_reported_as_an_identifier(tmp_path, open_telemetry):
    telemetry = open_telemetry(tmp_path, 4, [])
    telemetry.epoch_complete(0, steps=0, step=4, score=None, val_steps=0, checkpoint=None, phase="easy rows")
    assert payload(tmp_path)["phase"] == "easy-rows"


def test_file_is_closed_when_its_disk_has_no_room_for_the_last_word(tmp_path, monkeypatch):
    telemetry = Telemetry(tmp_path, 4, [])

    def emit(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(telemetry, "_report_failures", emit)
    with pytest.raises(OSError, match="No space"), telemetry:
        pass
    assert telemetry._file.closed


def test_gpu_fallback(tmp_path, open_telemetry):
    open_telemetry(tmp_path, 1, []).gpu_fallback("trainer", "cuda", ["no_cuda_device"])
    assert payload(tmp_path) == {
        "component": "trainer",
        "requested_device_kind": "cuda",
        "causes": ["no_cuda_device"],
    }


def test_summary_counts_this_process(tmp_path, open_telemetry):
    telemetry = open_telemetry(tmp_path, 10, [{"step": 1, "train_loss": 3.0}])
    assert telemetry.summary().ms_per_step is None
    telemetry.step(report(2))
    time.sleep(0.01)
    telemetry.validation(2, Score(1.0, 0.5, 4))
    telemetry.step(report(3))
    summary = telemetry.summary()
    assert (summary.total_steps, summary.total_tokens) == (2, 64)
    assert summary.wall_secs >= 0.01 + 2 * summary.ms_per_step / 1000
    assert str(summary).startswith("2 steps, 64 tokens in ")


# -- trackers ---------------------------------------------------------------------------------------------------------


class Notebook:
    """Replaces `Trackers`: records its calls, and reports one failure."""

    def __init__(self):
        self.told, self.ended, self._bad_days = [], None, [Failure("mlflow", "ConnectionError")]

    def log(self, step, metrics):
        self.told.append((step, dict(metrics)))

    def finish(self, status):
        self.ended = status

    def failures(self):
        days, self._bad_days = self._bad_days, []
        return days


def test_trackers_get_scalars_and_their_failures_are_reported_once(tmp_path):
    trackers = Notebook()
    with Telemetry(tmp_path, 10, [], trackers=trackers) as telemetry:
        telemetry.step(report(1, norm=float("nan")))
        telemetry.validation(1, Score(1.5, 0.25, 4))
    (first, scalars), second = trackers.told
    assert (first, scalars["train/loss"], scalars["train/learning_rate"]) == (1, 2.0, 1e-3)
    assert "train/grad_norm" not in scalars
    assert "speed/mfu" not in scalars
    assert second == (1, {"valid/loss": 1.5, "valid/token_accuracy": 0.25})
    failed = [line["payload"] for line in events(tmp_path) if line["event"] == "tracker_failed"]
    assert failed == [{"tracker": "mlflow", "error": "ConnectionError"}]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, TrackedStatus.FINISHED),
        (StopRequested(10), TrackedStatus.STOPPED),
        (JobFailed(Code.LOSS_NOT_FINITE, "no"), TrackedStatus.FAILED),
    ],
)
def test_trackers_hear_how_it_ended(tmp_path, error, status):
    trackers = Notebook()
    try:
        with Telemetry(tmp_path, 10, [], trackers=trackers):
            if error:
                raise error
    except type(error or ValueError):
        pass
    assert trackers.ended is status


# -- no text ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        {"step": "What"},
        {"note": "word"},
        {"run_id": "What is a bug?"},
        {"run_id": "two\nlines"},
        {"run_id": "Straße"},
        {"run_id": "x" * 201},
        {"metrics": {"train_loss": "word"}},
        {"causes": ["a sentence of words"]},
        {"loss": [1.0, "word"]},
    ],
)
def test_text_is_refused(tmp_path, open_telemetry, bad):
    telemetry = open_telemetry(tmp_path, 10, [])
    with pytest.raises(ValueError, match="does not accept this value"):
        telemetry.emit("step", bad)
    assert events(tmp_path) == []


def strings(value, field=""):
    """(field, string) of every string in a JSON value."""
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in strings(inner, key)]
    if isinstance(value, list):
        return [pair for inner in value for pair in strings(inner, field)]
    return [(field, value)] if isinstance(value, str) else []


def texts(run):
    """Every text of the run's data files."""
    files = [path for path in (run.inputs.train, run.inputs.validation) if path]
    rows = [json.loads(line) for path in files for line in Path(path).read_text().splitlines()]
    return {text for row in rows for field, text in strings(row) if field in ("prompt", "response", "content")}


def test_a_real_run_reports_every_event_and_no_text_of_its_data(finished):
    lines = events(finished.run_dir)
    assert {line["event"] for line in lines} == {
        "train_start",
        "step",
        "validation",
        "checkpoint",
        "epoch_complete",
        "self_evaluation_progress",
        "self_evaluation",
        "train_complete",
    }
    assert {field for line in lines for field, _ in strings(line["payload"])} <= TEXT_FIELDS
    written = [path for path in finished.run_dir.rglob("*") if path.is_file() and path.suffix in REPORT_SUFFIXES]
    written = [
        path for path in written if path.name not in ("MODEL_CARD.md", EVALUATION_NAME, EVALUATION_ROWS_NAME)
    ]  # they have sample answers
    assert len(written) >= 8
    for path in written:
        content = path.read_text()
        assert not [text for text in texts(finished.run) if text in content], path


REPORT_SUFFIXES = {".jsonl", ".csv", ".json", ".md", ".svg"}


def test_a_real_runs_numbers_agree_with_each_other(finished):
    steps = [line["payload"] for line in events(finished.run_dir) if line["event"] == "step"]
    summary = read_json(finished.run_dir / "run_summary.json")
    assert sum(step["tokens"] for step in steps) == summary["total_tokens"]
    assert all(0 < step["valid_tokens"] < step["tokens"] <= step["theoretical_tokens"] for step in steps)
    assert all(step["peak_memory_bytes"] > 100 << 20 for step in steps)
    epochs = [line["payload"] for line in events(finished.run_dir) if line["event"] == "epoch_complete"]
    assert sum(epoch["steps"] for epoch in epochs) == len(steps) == 12
    assert (finished.run_dir / TELEMETRY_NAME).read_text().endswith("\n")
