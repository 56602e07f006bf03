"""Rows at risk are replayed first: ranked by the rise of their loss, equal in a resumed run, and reported."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest

import worker.training.checkpoint
from shared.artifacts.manifests import WEIGHTS_NAME
from shared.hashing import digest_file
from tests.support.training_runs import ROWS
from worker.child_runtime import EXIT_CANCELLED, EXIT_PAUSED, StopRequested
from worker.run_folder import ADAPTER_FOLDER, METRICS_NAME, TELEMETRY_NAME, list_checkpoints
from worker.training.checkpoint import STATE_NAME
from worker.training.reproducibility import NOT_RECORDED
from worker.training.self_evaluation.replay_risk import AT_RISK_NATS, ReplayRisk, rank_by_risk

WRONG = [{"prompt": row["prompt"], "response": "Zero, zero, zero."} for row in ROWS if "prompt" in row]
"""Answers that replace what the base has learnt of ``ROWS``."""
EPOCHS = 4
EXEC = {"batch_size": 2, "grad_accum": 1, "seq_len": 64, "learning_rate": 0.02}


def test_rows_whose_loss_has_risen_most_come_first():
    rises = {7: 0.3, 3: 0.05, 5: 0.9, 1: -2.0, 2: 0.3}
    reference = [1.0] * len(rises)
    assert rank_by_risk([*rises], reference, [1.0 + rise for rise in rises.values()]) == [5, 2, 7]
    assert rank_by_risk([], [], []) == []


def test_row_whose_loss_is_not_finite_is_the_most_at_risk():
    assert rank_by_risk([0, 1, 2], [1.0, 1.0, 1.0], [9.0, math.nan, math.inf]) == [1, 2, 0]


@pytest.fixture(scope="module")
def plan(tiny, tmp_path_factory):
    """A run of three steps an epoch that forgets quickly; two of its six rows are replayed each time."""
    return tiny.plan_run(
        tmp_path_factory.mktemp("plan"),
        rows=WRONG,
        replay=ROWS,
        data={"replay_file": "file-r", "replay_ratio": 0.4, "validation_split_ratio": 0.0},
        exec=EXEC | {"epochs": EPOCHS, "checkpoint_every": 1},
        adapter={"rank": 4, "alpha": 8},
    )


@pytest.fixture(scope="module")
def whole(tiny, plan, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker.training.checkpoint, "KEEP", 99)
        return tiny.train(plan, tmp_path_factory.mktemp("whole"))


def reported(run_dir):
    lines = (run_dir / TELEMETRY_NAME).read_text().splitlines()
    return [line["payload"] for line in map(json.loads, lines) if line["event"] == "replay"]


def state_of(checkpoint):
    return json.loads((checkpoint / f"{STATE_NAME}.json").read_text())


def test_each_epoch_reports_what_has_risen(whole):
    told = reported(whole)
    assert [each["epoch"] for each in told] == list(range(EPOCHS))
    assert told[0] | {"watched": 0} == {"epoch": 0, "watched": 0, "at_risk": 0, "mean_rise": 0.0, "largest_rise": 0.0}
    assert {each["watched"] for each in told} == {4}
    assert any(each["at_risk"] for each in told[1:])
    for each in told:
        assert (each["largest_rise"] > AT_RISK_NATS) == bool(each["at_risk"])


def test_rows_at_risk_change_what_is_trained_on(tiny, plan, whole, tmp_path, monkeypatch):
    assert any(state_of(folder)["replay_at_risk"] for folder in list_checkpoints(whole))
    monkeypatch.setattr("worker.training.self_evaluation.replay_risk.AT_RISK_NATS", math.inf)
    by_turn = tiny.train(plan, tmp_path / "run")
    assert digest_file(by_turn / ADAPTER_FOLDER / WEIGHTS_NAME) != digest_file(whole / ADAPTER_FOLDER / WEIGHTS_NAME)


@pytest.mark.parametrize("place", [pytest.param(1, marks=pytest.mark.long), 5, -1])
def test_resumed_run_replays_the_same_rows(tiny, plan, whole, tmp_path, place):
    resumed = tiny.train(plan, tmp_path / "run", resume=list_checkpoints(whole)[place])
    for name in (f"{ADAPTER_FOLDER}/{WEIGHTS_NAME}", METRICS_NAME):
        assert digest_file(resumed / name) == digest_file(whole / name)
    assert reported(resumed) == [each for each in reported(whole) if each in reported(resumed)]


@pytest.mark.parametrize(("signal", "code"), [("cancel_requested", EXIT_CANCELLED), ("pause_requested", EXIT_PAUSED)])
def test_scoring_ends_when_a_stop_is_requested(signal, code):
    stop = SimpleNamespace(**{"cancel_requested": False, "pause_requested": False} | {signal: True})
    context = SimpleNamespace(distributed=SimpleNamespace(largest=list))
    risk = ReplayRisk(context, None, SimpleNamespace(working=lambda _: None), stop)
    with pytest.raises(StopRequested) as stopped:
        risk._check()
    assert stopped.value.exit_code == code


def test_epoch_that_early_stopping_omits_scores_nothing(monkeypatch):
    monkeypatch.setattr("worker.training.self_evaluation.replay_risk.is_exhausted", lambda *_: True)
    contract = SimpleNamespace(exec=SimpleNamespace(early_stopping_patience=1))
    context = SimpleNamespace(
        order=SimpleNamespace(watched=[1], epochs=[1, 2]), plan=SimpleNamespace(contract=contract)
    )
    progress = SimpleNamespace(metrics=[], replay_epoch=0, replay_at_risk=[3])
    assert ReplayRisk(context, progress, None, None).before_epoch(1) == ()


def test_checkpoint_of_an_earlier_release_is_resumed(tiny, plan, whole, tmp_path):
    folder = list_checkpoints(whole)[0]
    state = {name: value for name, value in state_of(folder).items() if not name.startswith("replay_")}
    copy = tmp_path / folder.name
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / f"{STATE_NAME}.json").write_text(json.dumps(state))
    resumed = tiny.train(plan, tmp_path / "run", resume=copy)
    assert [each["epoch"] for each in reported(resumed)] == list(range(EPOCHS))
    (last, *_) = reversed(list_checkpoints(resumed))
    assert NOT_RECORDED in state_of(last)["inexact_reasons"], "its reference is not that of the whole run"


class OneOf(SimpleNamespace):
    """One of several processes. Its sums are its own part, and its checks are counted."""

    def sum(self, values):
        return list(values)

    def largest(self, values):
        self.checks += 1
        return list(values)


def losses_of(monkeypatch, rank, size, *, shard_base=False, watched=(4, 2, 0, 5, 1)):
    """Losses that one process contributes, and how often it waited for the others."""
    scored = []

    def score(_, rows, check):
        for row in rows:
            check()
            scored.append(row)
        return [SimpleNamespace(loss=2.0 * row, weight=2.0) for row in rows]

    monkeypatch.setattr("worker.training.self_evaluation.replay_risk.score_rows", score)
    distributed = OneOf(rank=rank, size=size, is_main=rank == 0, checks=0)
    context = SimpleNamespace(
        order=SimpleNamespace(watched=list(watched)),
        data=SimpleNamespace(replay=[10.0 + row for row in range(6)]),
        distributed=distributed,
        budget=SimpleNamespace(shard_base=shard_base),
    )
    stop = SimpleNamespace(cancel_requested=False, pause_requested=False)
    losses = ReplayRisk(context, None, SimpleNamespace(working=lambda _: None), stop)._losses()
    return losses, scored, distributed.checks


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_processes_share_the_watched_rows(monkeypatch, size):
    """Together they score each row once, with the losses of one process; all wait for each other equally often."""
    (alone, _, _), parts = losses_of(monkeypatch, 0, 1), [losses_of(monkeypatch, rank, size) for rank in range(size)]
    assert sorted(row for _, scored, _ in parts for row in scored) == [10.0, 11.0, 12.0, 14.0, 15.0]
    assert [sum(values) for values in zip(*(losses for losses, _, _ in parts), strict=True)] == alone
    assert len({checks for _, _, checks in parts}) == 1


def test_with_a_sharded_base_all_score_every_row(monkeypatch):
    parts = [losses_of(monkeypatch, rank, 2, shard_base=True) for rank in (0, 1)]
    assert [len(scored) for _, scored, _ in parts] == [5, 5]
    assert [sum(values) for values in zip(*(losses for losses, _, _ in parts), strict=True)] == parts[0][0]
