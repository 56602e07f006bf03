"""The trainer: what it learns, how it stops, and that a resumed run equals the uninterrupted one, byte for byte."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import worker.train
import worker.training.reporting.telemetry
import worker.training.step
from shared.artifacts.manifests import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME
from shared.errors import Code, DatasetInvalid, JobFailed
from shared.hashing import digest_file
from tests.support.training_runs import ROWS, CancelAfter, PauseAfter
from tests.worker.conftest import Finished
from worker.child_runtime import EXIT_CANCELLED, EXIT_PAUSED, StopRequested
from worker.run_folder import (
    ADAPTER_FOLDER,
    EVALUATION_NAME,
    EVALUATION_ROWS_NAME,
    METRICS_NAME,
    PROBES_NAME,
    SUMMARY_NAME,
    TELEMETRY_NAME,
    TRAINING_MANIFEST_NAME,
    list_checkpoints,
    read_json,
)
from worker.training.reporting.telemetry import METRIC_COLUMNS
from worker.training.reporting.trackers import Trackers
from worker.training.supervised import SupervisedMethod
from worker.watchdog.stall import StallWatch

ADAPTER_FILES = (WEIGHTS_NAME, CONFIG_NAME, MANIFEST_NAME)
ENGINE_SECONDS = 60

GOLDEN_LOSSES = [5.0735, 6.4411, 4.9894, 4.6782, 5.9988, 5.4593]


def telemetry(run_dir: Path, event: str | None = None) -> list[dict]:
    lines = [json.loads(line) for line in (run_dir / TELEMETRY_NAME).read_text().splitlines()]
    return [line["payload"] if event else line for line in lines if event in (None, line["event"])]


def losses(run_dir: Path) -> list[float]:
    return [step["loss"] for step in telemetry(run_dir, "step")]


def adapter_digests(run_dir: Path) -> dict[str, str]:
    return {name: digest_file(run_dir / ADAPTER_FOLDER / name) for name in ADAPTER_FILES}


def metrics(run_dir: Path) -> list[dict[str, str]]:
    with (run_dir / METRICS_NAME).open(newline="") as file:
        return list(csv.DictReader(file))


# -- learning ---------------------------------------------------------------------------------------------------------


def test_golden_losses(tiny, tmp_path):
    run = tiny.plan_run(tmp_path, exec={"epochs": 2, "learning_rate": 1e-3})
    assert losses(tiny.train(run, tmp_path / "run")) == pytest.approx(GOLDEN_LOSSES, rel=2e-3)


def test_the_loss_falls(tiny, tmp_path):
    run = tiny.plan_run(tmp_path, exec={"epochs": 12, "batch_size": 6, "warmup_steps": 2})
    seen = losses(tiny.train(run, tmp_path / "run"))
    assert len(seen) == 12
    assert seen[-1] < 0.8 * seen[0]


def test_the_same_plan_gives_the_same_bytes(tiny, tmp_path):
    run = tiny.plan_run(tmp_path, adapter={"dropout": 0.2}, data={"validation_split_ratio": 0.34})
    one, other = (adapter_digests(tiny.train(run, tmp_path / name)) for name in ("one", "other"))
    assert one == other


def test_another_seed_gives_another_adapter(tiny, tmp_path):
    runs = [tiny.plan_run(tmp_path / str(seed), exec={"epochs": 1, "seed": seed}) for seed in (1, 2)]
    one, other = (adapter_digests(tiny.train(run, tmp_path / f"r{i}")) for i, run in enumerate(runs))
    assert one[WEIGHTS_NAME] != other[WEIGHTS_NAME]


@pytest.fixture(scope="module")
def large_batch(tiny, tmp_path_factory) -> list[float]:
    """Losses of steps whose rows are one batch."""
    folder = tmp_path_factory.mktemp("large")
    run = tiny.plan_run(folder, exec={"epochs": 3, "batch_size": 6, "grad_accum": 1})
    return losses(tiny.train(run, folder / "run"))


@pytest.mark.parametrize(("batch_size", "grad_accum"), [(1, 6), (2, 3), (3, 2)])
def test_accumulation_trains_what_one_large_batch_trains(tiny, large_batch, tmp_path, batch_size, grad_accum):
    run = tiny.plan_run(tmp_path, exec={"epochs": 3, "batch_size": batch_size, "grad_accum": grad_accum})
    assert losses(tiny.train(run, tmp_path / "run")) == pytest.approx(large_batch, rel=1e-4)


def test_a_large_gradient_is_clipped(tiny, tmp_path, monkeypatch):
    seen = []
    clip = torch.nn.utils.clip_grad_norm_

    def watch(parameters, max_norm):
        parameters = list(parameters)
        before = clip(parameters, max_norm)
        seen.append((before.item(), torch.stack([p.grad.norm() for p in parameters]).norm().item()))
        return before

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", watch)
    run = tiny.plan_run(tmp_path, exec={"epochs": 1, "max_grad_norm": 0.05})
    run_dir = tiny.train(run, tmp_path / "run")
    assert all(before > 0.05 and after == pytest.approx(0.05, rel=1e-3) for before, after in seen)
    assert [step["grad_norm"] for step in telemetry(run_dir, "step")] == [before for before, _ in seen]


def test_warm_up_and_cosine_are_used(tiny, tmp_path, monkeypatch):
    tracked = {}
    monkeypatch.setattr(Trackers, "start", lambda _self, _plan, _folder, _id, params: tracked.update(params))
    run = tiny.plan_run(tmp_path, exec={"epochs": 20, "batch_size": 6, "warmup_steps": 100, "learning_rate": 0.01})
    rates = [step["learning_rate"] for step in telemetry(tiny.train(run, tmp_path / "run"), "step")]
    assert tracked == {"optimizer_steps": 20, "exec.warmup_steps": 2}
    assert rates[:3] == pytest.approx([0.005, 0.01, 0.01])
    assert rates[-1] == pytest.approx(0.01 * 0.5 * (1 + torch.cos(torch.tensor(torch.pi * 17 / 18)).item()), rel=1e-4)


def test_low_ratings_are_left_out(tiny, tmp_path):
    rows = [{"prompt": f"Q{n}", "response": "A", "rating": n} for n in range(1, 6)] + [{"prompt": "Q", "response": "A"}]
    run = tiny.plan_run(tmp_path, rows, exec={"epochs": 1}, data={"min_rating": 4})
    assert telemetry(tiny.train(run, tmp_path / "run"), "train_start")[0]["pairs_loaded"] == 3


def test_last_k_is_used(tiny, tmp_path):
    run = tiny.plan_run(tmp_path, exec={"epochs": 1, "qlora_ce_last_k": 1})
    steps = telemetry(tiny.train(run, tmp_path / "run"), "step")
    assert [step["valid_tokens"] for step in steps] == [2, 2, 2]


def test_held_out_rows_are_not_trained_on(tiny, tmp_path):
    run = tiny.plan_run(tmp_path, exec={"epochs": 1}, data={"validation_split_ratio": 0.5})
    run_dir = tiny.train(run, tmp_path / "run")
    start = telemetry(run_dir, "train_start")[0]
    assert (start["pairs_loaded"], start["validation_pairs"]) == (3, 3)
    assert len(losses(run_dir)) == 2


# -- faults -----------------------------------------------------------------------------------------------------------


def poison(monkeypatch, from_step: int, to_step: int = 10_000) -> None:
    """Make the loss NaN in some optimizer steps."""
    real, calls = worker.training.step.accumulate_gradients, iter(range(1, 100_000))

    def accumulate(method, model, batches, device, weight_sum):
        score = real(method, model, batches, device, weight_sum)
        return score._replace(loss=torch.tensor(float("nan"))) if from_step <= next(calls) <= to_step else score

    monkeypatch.setattr(worker.training.step, "accumulate_gradients", accumulate)


def test_a_loss_that_stays_not_finite_ends_the_run(tiny, tmp_path, monkeypatch):
    poison(monkeypatch, from_step=2)
    with pytest.raises(JobFailed) as failed:
        tiny.train(tiny.plan_run(tmp_path, exec={"epochs": 4}), tmp_path / "run")
    assert failed.value.code == Code.LOSS_NOT_FINITE
    assert "step 4" in failed.value.message
    assert not failed.value.retryable
    assert len(losses(tmp_path / "run")) == 4
    assert not (tmp_path / "run" / SUMMARY_NAME).exists()


def test_a_step_that_is_not_finite_changes_nothing_and_is_reported_as_null(tiny, tmp_path, monkeypatch):
    plan = tiny.plan_run(tmp_path, exec={"epochs": 1, "batch_size": 3})
    poison(monkeypatch, from_step=1, to_step=2)
    run_dir = tiny.train(plan, tmp_path / "run")
    assert losses(run_dir) == [None, None]
    from safetensors.torch import load_file

    tensors = load_file(run_dir / ADAPTER_FOLDER / WEIGHTS_NAME)
    assert not any(tensor.any() for key, tensor in tensors.items() if "lora_B" in key)


def test_a_validation_that_is_not_finite_does_not_crash_the_run(tiny, tmp_path, monkeypatch):
    real = worker.train.mean_score
    monkeypatch.setattr(worker.train, "mean_score", lambda *args: real(*args)._replace(loss=float("nan")))
    from worker.jobs.progress import to_events

    rows = [{"prompt": "Q", "response": "A"}]
    run_dir = tiny.train(tiny.plan_run(tmp_path, validation=rows, exec={"epochs": 1}), tmp_path / "run")
    assert telemetry(run_dir, "validation")[-1]["val_loss"] is None
    assert to_events(telemetry(run_dir))


class SlowValidation:
    """Stands where the loss is computed: without gradients a micro-batch takes half of what the stall watch allows."""

    def __init__(self, monkeypatch, run_dir: Path) -> None:
        self.seconds, self._run_dir, self._seen = 0.0, run_dir, 0
        self.watch = StallWatch(start_seconds=10, stall_seconds=60, clock=self.now)
        self._real = SupervisedMethod().loss
        monkeypatch.setattr(SupervisedMethod, "loss", self)
        clock = SimpleNamespace(monotonic=self.now, time_ns=time.time_ns)
        monkeypatch.setattr(worker.training.reporting.telemetry, "time", clock)

    def now(self) -> float:
        return self.seconds

    def look(self) -> None:
        """Do the worker's periodic work."""
        lines = telemetry(self._run_dir)
        self.watch.note(lines[self._seen :])
        self._seen = len(lines)
        self.watch.check()

    def __call__(self, *arguments):
        self.look()
        self.seconds += 0 if torch.is_grad_enabled() else 30
        return self._real(*arguments)


def test_a_run_whose_validation_is_slow_is_not_taken_for_a_stalled_one(tiny, tmp_path, monkeypatch):
    """The first validation of all: nothing before it was slow. The self-evaluation asks for as many rows twice."""
    run = tiny.plan_run(tmp_path, validation=ROWS, exec={"epochs": 1, "batch_size": 1})
    slow = SlowValidation(monkeypatch, tmp_path / "run")
    run_dir = tiny.train(run, tmp_path / "run")
    slow.look()
    assert slow.seconds == 30 * 3 * len(ROWS)
    assert {line["activity"] for line in telemetry(run_dir, "working")} == {"validation", "self_evaluation"}
    progress = telemetry(run_dir, "self_evaluation_progress")
    assert [line["items_done"] for line in progress if line["activity"] == "scored_rows"] == list(range(len(ROWS) + 1))


FORGOTTEN = {
    "messages": [
        {"role": "user", "content": "What is a bug?"},
        {"role": "assistant", "content": "A mistake."},
        {"role": "user", "content": "And what is a test, and a name, and a file, and a loop?"},
        {"role": "assistant", "content": "It runs code and compares the result.", "weight": 0},
    ]
}
"""Only its first answer is learnt, and within 24 tokens from the end that is cut off."""


def test_nothing_to_learn_within_seq_len(tiny, tmp_path):
    with pytest.raises(DatasetInvalid) as refused:
        tiny.train(tiny.plan_run(tmp_path, [FORGOTTEN, FORGOTTEN], exec={"seq_len": 24}), tmp_path / "run")
    assert refused.value.code == Code.NOTHING_SUPERVISED
    assert "lines 1, 2" in refused.value.message


def test_rows_with_nothing_to_learn_are_counted_and_named(tiny, tmp_path):
    rows = [*ROWS[:2], FORGOTTEN, ROWS[3], FORGOTTEN, ROWS[4]]
    run_dir = tiny.train(
        tiny.plan_run(tmp_path, rows, exec={"epochs": 1, "seq_len": 24}, data={"mode": "lenient"}), tmp_path / "run"
    )
    start = telemetry(run_dir, "train_start")[0]
    assert (start["skip_no_supervised_positions"], start["planned_optimizer_steps_total"]) == (2, 2)
    assert len(losses(run_dir)) == 2
    assert read_json(run_dir / TRAINING_MANIFEST_NAME)["skipped_lines"] == [3, 5]


def test_early_stopping_ends_a_run_that_gets_no_better(tiny, tmp_path):
    """At this rate the held-out row is soon further away; the run ends by itself, whole."""
    exec_ = {"epochs": 30, "batch_size": 6, "learning_rate": 0.05, "early_stopping_patience": 2}
    run_dir = tiny.train(tiny.plan_run(tmp_path, validation=HELD_OUT, exec=exec_), tmp_path / "run")
    steps = losses(run_dir)
    assert 3 <= len(steps) < 30
    assert read_json(run_dir / SUMMARY_NAME)["optimizer_step_count"] == len(steps)
    seen = [row["val_loss"] for row in telemetry(run_dir, "validation")]
    assert seen.index(min(seen)) == len(seen) - 3


# -- stop and resume --------------------------------------------------------------------------------------------------


LONG_RUN = {
    "exec": {"epochs": 3, "checkpoint_every": 2, "warmup_steps": 3, "batch_size": 1, "grad_accum": 2},
    "adapter": {"rank": 4, "alpha": 8, "dropout": 0.1},
}
HELD_OUT = [{"prompt": "What is a fix?", "response": "A change."}]


@pytest.fixture(scope="module")
def without_validation(tiny, tmp_path_factory) -> Finished:
    """The uninterrupted run, which has no validation rows."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    run = tiny.plan_run(folder, **LONG_RUN)
    return Finished(run, tiny.train(run, folder / "run"))


@pytest.fixture(scope="module")
def with_validation(tiny, tmp_path_factory) -> Finished:
    """The uninterrupted run, which has one."""
    folder = tmp_path_factory.mktemp("validated")
    run = tiny.plan_run(folder, validation=HELD_OUT, **LONG_RUN)
    return Finished(run, tiny.train(run, folder / "run"))


@pytest.mark.parametrize(
    ("stop_after", "uninterrupted"),
    [
        pytest.param(1, "without_validation", marks=pytest.mark.long),
        pytest.param(1, "with_validation", marks=pytest.mark.long),
        (3, "without_validation"),
        pytest.param(3, "with_validation", marks=pytest.mark.long),
        pytest.param(4, "without_validation", marks=pytest.mark.long),
        (4, "with_validation"),
    ],
)
def test_resumed_run_is_the_uninterrupted_run(tiny, tmp_path, request, stop_after, uninterrupted):
    finished = request.getfixturevalue(uninterrupted)
    run, whole = finished.run, finished.run_dir
    with pytest.raises(StopRequested) as stopped:
        tiny.train(run, tmp_path / "first", stop=PauseAfter(stop_after))
    assert stopped.value.exit_code == EXIT_PAUSED
    checkpoint = list_checkpoints(tmp_path / "first")[-1]
    assert checkpoint.name == f"step-{stop_after:08d}"
    torch.rand(7)  # the process that resumes has drawn other numbers before
    second = tiny.train(run, tmp_path / "second", resume=checkpoint)
    assert adapter_digests(second) == adapter_digests(whole)
    assert losses(tmp_path / "first") + losses(second) == losses(whole)
    told = telemetry(second, "train_start")[0]
    assert told["resumed_from_step"] == stop_after
    one, other = (read_json(run_dir / SUMMARY_NAME) for run_dir in (second, whole))
    assert one["trained_tokens"] == other["trained_tokens"]
    assert one["optimizer_step_count"] == other["optimizer_step_count"] == 9
    train_rows = [[(row["step"], row["train_loss"]) for row in metrics(run_dir)] for run_dir in (second, whole)]
    assert train_rows[0] == train_rows[1]


def test_resume_from_a_checkpoint_on_the_way_is_the_uninterrupted_run(tiny, with_validation, tmp_path):
    run, whole = with_validation.run, with_validation.run_dir
    oldest = list_checkpoints(whole)[0]
    assert adapter_digests(tiny.train(run, tmp_path / "second", resume=oldest)) == adapter_digests(whole)


def test_pause_in_the_last_step_loses_nothing(tiny, without_validation, tmp_path):
    run = without_validation.run
    with pytest.raises(StopRequested):
        tiny.train(run, tmp_path / "first", stop=PauseAfter(9))
    second = tiny.train(run, tmp_path / "second", resume=list_checkpoints(tmp_path / "first")[-1])
    assert losses(second) == []
    assert adapter_digests(second) == adapter_digests(without_validation.run_dir)


def steps_of(run_dir: Path) -> list[int]:
    return [int(folder.name.removeprefix("step-")) for folder in list_checkpoints(run_dir)]


def test_a_default_run_has_a_checkpoint_at_each_epochs_end(tiny, tmp_path):
    run_dir = tiny.train(tiny.plan_run(tmp_path, exec={"epochs": 3}), tmp_path / "run")
    assert steps_of(run_dir) == [3, 6]
    assert [one["checkpoint"] for one in telemetry(run_dir, "epoch_complete")] == [
        "step-00000003",
        "step-00000006",
        None,
    ]


def test_checkpoints_of_a_published_run_carry_their_own_scores_and_change_no_weight(tiny, tmp_path):
    """The scores of a step are those of its weights; the run has the bytes of one that is not published."""
    exec_ = {"epochs": 2, "batch_size": 1, "checkpoint_every": 2}
    runs = {}
    for publish in (True, False):
        plan = tiny.plan_run(tmp_path, exec=exec_, artifact={"publish": publish})
        runs[publish] = tiny.train(plan, tmp_path / f"published-{publish}")
    published, other = (list_checkpoints(runs[publish]) for publish in (True, False))
    scores = [[probe["trained"] for probe in (read_json(folder / PROBES_NAME) or {})["probes"]] for folder in published]
    assert len(scores) > 1
    assert scores[0] != scores[1]
    assert all(scored and scored[0] for scored in scores)
    assert not [folder for folder in other if (folder / PROBES_NAME).exists()]
    for ours, theirs in zip(
        [*published, runs[True] / ADAPTER_FOLDER], [*other, runs[False] / ADAPTER_FOLDER], strict=True
    ):
        assert digest_file(ours / WEIGHTS_NAME) == digest_file(theirs / WEIGHTS_NAME)


def test_checkpoints_within_a_long_epoch_displace_none_of_an_epochs_end(tiny, tmp_path):
    run = tiny.plan_run(tmp_path, exec={"epochs": 3, "batch_size": 1, "checkpoint_every": 1})
    assert steps_of(tiny.train(run, tmp_path / "run")) == [6, 12, 17]


def test_within_a_long_epoch_time_makes_checkpoints_that_are_not_a_result(tiny, tmp_path):
    run = tiny.plan_run(tmp_path, validation=HELD_OUT, exec={"epochs": 2, "checkpoint_minutes": 1e-9})
    whole = tiny.train(run, tmp_path / "whole")
    assert [one["step"] for one in telemetry(whole, "checkpoint")] == [1, 2, 3, 4, 5, 6]
    assert [one["step"] for one in telemetry(whole, "validation")] == [3, 6], "early stopping must not see the clock"
    assert steps_of(whole) == [3]

    with pytest.raises(StopRequested):
        tiny.train(run, tmp_path / "killed", stop=CancelAfter(5))
    assert steps_of(tmp_path / "killed") == [3, 4]
    second = tiny.train(run, tmp_path / "second", resume=list_checkpoints(tmp_path / "killed")[-1])
    assert adapter_digests(second) == adapter_digests(whole)
    assert steps_of(second) == [3], "the result's checkpoints do not depend on the interruption"


def test_cancel_writes_no_checkpoint(tiny, tmp_path):
    with pytest.raises(StopRequested) as stopped:
        tiny.train(tiny.plan_run(tmp_path), tmp_path / "run", stop=CancelAfter(1))
    assert stopped.value.exit_code == EXIT_CANCELLED
    assert len(losses(tmp_path / "run")) == 1
    assert list_checkpoints(tmp_path / "run") == []
    assert not (tmp_path / "run" / ADAPTER_FOLDER).exists()


def test_checkpoint_of_another_plan_is_refused(tiny, tmp_path):
    run = tiny.plan_run(tmp_path, exec={"epochs": 1, "checkpoint_every": 1})
    checkpoint = list_checkpoints(tiny.train(run, tmp_path / "one"))[0]
    other = tiny.plan_run(tmp_path, exec={"epochs": 1, "checkpoint_every": 1, "learning_rate": 0.02})
    with pytest.raises(JobFailed) as failed:
        tiny.train(other, tmp_path / "other", resume=checkpoint)
    assert failed.value.code == Code.CHECKPOINT_MISMATCH


# -- what a run leaves ------------------------------------------------------------------------------------------------


def test_a_run_leaves_every_file(finished):
    names = {path.name for path in finished.run_dir.iterdir()}
    assert names == {
        "adapter",
        "checkpoints",
        "prepared",
        "tensorboard",
        "MODEL_CARD.md",
        "loss.svg",
        "training_skip_stats.json",
        EVALUATION_NAME,
        EVALUATION_ROWS_NAME,
        METRICS_NAME,
        PROBES_NAME,
        SUMMARY_NAME,
        TELEMETRY_NAME,
        TRAINING_MANIFEST_NAME,
    }
    assert {path.name for path in (finished.run_dir / ADAPTER_FOLDER).iterdir()} == set(ADAPTER_FILES)
    rows, summary = (
        json.loads((finished.run_dir / name).read_bytes()) for name in (EVALUATION_ROWS_NAME, SUMMARY_NAME)
    )
    assert rows["seconds"] > 0, "the publisher takes it off its own time"
    assert summary["training_summary"]["wall_secs"] > 0


def test_the_summary_is_written_last(tiny, tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError("disk full")

    run = tiny.plan_run(tmp_path, exec={"epochs": 1})
    for step in ("save_adapter", "write_probes"):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="disk full"):
            patch.setattr(worker.train, step, fail)
            tiny.train(run, tmp_path / step)
        assert not (tmp_path / step / SUMMARY_NAME).exists()


def test_telemetry_reports_the_run_and_no_text(finished):
    lines = telemetry(finished.run_dir)
    assert all(set(line) == {"ts_ms", "event", "payload"} for line in lines)
    assert [line["ts_ms"] for line in lines] == sorted(line["ts_ms"] for line in lines)
    assert lines[0]["event"] == "train_start"
    assert lines[-1]["event"] == "train_complete"
    assert [step["step"] for step in telemetry(finished.run_dir, "step")] == list(range(1, 13))
    assert [one["step"] for one in telemetry(finished.run_dir, "checkpoint")] == [2, 3, 4, 6, 8, 9, 10, 12]
    raw = (finished.run_dir / TELEMETRY_NAME).read_text()
    for text in ("What is", "mistake", "brief", str(finished.run_dir)):
        assert text not in raw


def test_metrics_are_openais_columns(finished):
    rows = metrics(finished.run_dir)
    assert tuple(rows[0]) == METRIC_COLUMNS
    assert [int(row["step"]) for row in rows] == list(range(1, 13))
    assert all(row["train_loss"] and row["train_accuracy"] for row in rows)
    assert rows[-1]["valid_loss"]
    assert rows[0]["valid_loss"] == ""
    assert [row["step"] for row in rows if row["valid_loss"]] == ["2", "3", "4", "6", "8", "9", "10", "12"]
