"""The self-evaluation of real runs: its numbers equal validation's, it changes no adapter, and it fails no run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import worker.training.self_evaluation.evaluate
from shared.model_card.evaluation_rows import RowScore
from shared.model_card.self_evaluation import RowSource, SelfEvaluation
from tests.support.training_runs import ROWS, PauseAfter
from worker.child_runtime import EXIT_CANCELLED, EXIT_PAUSED, StopRequested
from worker.run_folder import ADAPTER_FOLDER, EVALUATION_NAME, SUMMARY_NAME, TELEMETRY_NAME, list_checkpoints, read_json
from worker.training.data.prepared import Row
from worker.training.loss import mean_score, validation_sums
from worker.training.preference.rated import RatedAnswer
from worker.training.reporting.model_card import CARD_NAME
from worker.training.self_evaluation.evaluate import MAX_TRIES, SAMPLES_VARIABLE, _Evaluation
from worker.training.supervised import SupervisedMethod
from worker.training.trainer import set_up


@pytest.fixture(autouse=True, scope="module")
def two_sample_answers() -> Iterator[None]:
    """Not the eight that a run makes by itself: `jobs/test_finetune.py` has such a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SAMPLES_VARIABLE, "2")
        yield


@pytest.fixture(scope="module")
def plain(tiny, tmp_path_factory, two_sample_answers):
    """A run of one epoch without held-out rows, and its folder; tests read it and never change it."""
    folder = tmp_path_factory.mktemp("plain")
    run = tiny.plan_run(folder, exec={"epochs": 1})
    return run, tiny.train(run, folder / "run")


@pytest.fixture(scope="module")
def held_out(tiny, tmp_path_factory, two_sample_answers):
    """The same with two rows held out."""
    folder = tmp_path_factory.mktemp("held-out")
    run = tiny.plan_run(folder, exec={"epochs": 1}, data={"validation_split_ratio": 0.34})
    return run, tiny.train(run, folder / "run")


def evaluation_of(run_dir) -> SelfEvaluation:
    return SelfEvaluation.model_validate(read_json(run_dir / EVALUATION_NAME))


def events(run_dir, kind):
    lines = map(json.loads, (run_dir / TELEMETRY_NAME).read_text().splitlines())
    return [line["payload"] for line in lines if line["event"] == kind]


def adapter_bytes(run_dir):
    return {path.name: path.read_bytes() for path in (run_dir / ADAPTER_FOLDER).iterdir()}


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_the_tuned_model_scores_what_the_last_validation_did(finished):
    found, summary = evaluation_of(finished.run_dir), read_json(finished.run_dir / SUMMARY_NAME)
    assert (found.source, found.rows, found.rows_available) == (RowSource.VALIDATION_FILE, 2, 2)
    assert found.loss.tuned == pytest.approx(summary["last_val_loss"], rel=1e-5)
    assert found.token_accuracy.tuned == pytest.approx(summary["metrics"]["valid_mean_token_accuracy"])


def test_the_base_scores_what_it_did_before_training(finished, tmp_path):
    """A new adapter has no effect: B is zero."""
    context = set_up(finished.run, tmp_path, tmp_path / "cache", SupervisedMethod())
    before = mean_score(validation_sums(context.method, context.model, context.validation_batches(1), context.device))
    found = evaluation_of(finished.run_dir)
    assert found.loss.base == pytest.approx(before.loss, rel=1e-5)
    assert found.token_accuracy.base == pytest.approx(before.accuracy)
    assert found.tokens == before.targets
    assert found.loss.base != pytest.approx(found.loss.tuned, rel=1e-2)


def test_the_card_shows_the_numbers_and_the_answers(finished):
    found, card = evaluation_of(finished.run_dir), (finished.run_dir / CARD_NAME).read_text()
    assert f"| loss (nats per token) | {found.loss.base:.4f} | {found.loss.tuned:.4f} |" in card
    assert [sample.reference for sample in found.sample_answers if f"    {sample.reference}\n" not in card] == []
    assert len(found.sample_answers) == 2


def test_telemetry_has_what_it_cost_and_no_text(finished):
    (event,) = events(finished.run_dir, "self_evaluation")
    assert event["rows"] == 2
    assert event["sample_answers"] == 2
    assert event["seconds"] > 0
    assert "mistake" not in json.dumps(event)


def test_without_held_out_rows_training_rows_are_taken_and_called_so(plain):
    _, run_dir = plain
    found = evaluation_of(run_dir)
    assert (found.source, found.rows_available) == (RowSource.TRAINING, len(ROWS))
    assert "rows that were trained on" in (run_dir / CARD_NAME).read_text()


def test_held_out_rows_are_those_that_were_not_trained_on(held_out):
    _, run_dir = held_out
    found = evaluation_of(run_dir)
    assert (found.source, found.rows_available, found.held_out_copies) == (RowSource.HELD_OUT, 2, 0)
    assert len({sample.line for sample in found.sample_answers}) == 2


def test_held_out_rows_that_are_trained_on_too_are_reported_with_the_numbers(tiny, tmp_path):
    run = tiny.plan_run(tmp_path, [ROWS[0]] * 6, exec={"epochs": 1}, data={"validation_split_ratio": 0.34})
    run_dir = tiny.train(run, tmp_path / "run")
    found = evaluation_of(run_dir)
    assert (found.source, found.rows, found.held_out_copies) == (RowSource.HELD_OUT, 2, 2)
    assert events(run_dir, "self_evaluation")[0]["held_out_copies"] == 2
    assert "**2 of which are trained on too**" in (run_dir / CARD_NAME).read_text()


def rated(number, *, good):
    chat = Row(line=number + 1, ids=np.arange(40), weights=np.ones(40, np.float32), weight=1.0, difficulty=0)
    return RatedAnswer(2 * number, chat, is_good=good)


def rated_evaluation(monkeypatch, training, validation, copies=()):
    """A self-evaluation of rated answers, whose scores are made up."""
    data = SimpleNamespace(
        rows=training,
        training=np.arange(len(training)),
        validation=validation,
        row=training.__getitem__,
        copies=frozenset(copies),
    )
    model = SimpleNamespace(disable_adapter=nullcontext)
    exec_ = SimpleNamespace(seed=0)
    plan = SimpleNamespace(contract=SimpleNamespace(exec=exec_))
    context = SimpleNamespace(data=data, model=model, plan=plan)
    made_up = RowScore(loss=40.0, correct=20, weight=40, targets=40)
    monkeypatch.setattr(
        worker.training.self_evaluation.evaluate, "score_rows", lambda _context, rows, _check: [made_up for _ in rows]
    )
    monkeypatch.setattr(worker.training.self_evaluation.evaluate, "_precision", lambda _: "float32")
    inputs = SimpleNamespace(train="train", validation="validation")
    work = _Evaluation(context, inputs, 0, lambda: None, lambda *_: None)
    work.score()
    return work.result()


def test_rows_are_chosen_among_those_with_an_answer_to_give(monkeypatch):
    """Fails while rows are chosen first: of 400 a tenth is good, and 25 or so are chosen."""
    held = [rated(number, good=number % 10 == 0) for number in range(400)]
    found = rated_evaluation(monkeypatch, [rated(0, good=True)], held, copies=range(400))
    assert (found.source, found.rows_available, found.rows) == (RowSource.VALIDATION_FILE, 40, 25)
    assert found.held_out_copies == 25
    assert found.loss.interval is not None


def test_good_training_answers_are_taken_where_every_held_out_one_is_bad(monkeypatch):
    training = [rated(number, good=number > 1) for number in range(5)]
    found = rated_evaluation(monkeypatch, training, [rated(9, good=False)], copies=range(5))
    assert (found.source, found.rows_available, found.rows, found.held_out_copies) == (RowSource.TRAINING, 3, 3, 0)
    assert found.notes == ("No held-out row has an answer that is rated good, so training rows are used.",)


def test_without_a_good_answer_the_note_says_so(monkeypatch):
    found = rated_evaluation(monkeypatch, [rated(0, good=False)], [])
    assert (found.rows, found.loss, len(found.notes)) == (0, None, 1)
    assert "No row has an answer that is rated good" in found.notes[0]


# -- it changes nothing and fails nothing -----------------------------------------------------------------------------


def test_an_operator_leaves_the_answers_out(tiny, plain, tmp_path, monkeypatch):
    run, whole = plain
    monkeypatch.setenv(SAMPLES_VARIABLE, "0")
    bare = tiny.train(run, tmp_path / "bare")
    assert evaluation_of(bare).sample_answers == ()
    assert evaluation_of(bare).general_answers == evaluation_of(whole).general_answers != ()
    assert ROWS[1]["response"] not in (bare / CARD_NAME).read_text()
    assert evaluation_of(bare).loss == evaluation_of(whole).loss
    assert adapter_bytes(bare) == adapter_bytes(whole)


@pytest.mark.parametrize(
    ("part", "error", "code"),
    [("score_rows", MemoryError(), "OUT_OF_MEMORY"), ("answer_both", KeyError("x"), "INTERNAL_ERROR")],
)
def test_what_fails_is_left_out_and_the_run_is_whole(tiny, tmp_path, monkeypatch, part, error, code):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(worker.training.self_evaluation.evaluate, part, fail)
    run_dir = tiny.train(tiny.plan_run(tmp_path, exec={"epochs": 1}), tmp_path / "run")
    found = evaluation_of(run_dir)
    assert (found.loss is None, found.sample_answers == ()) == (part == "score_rows", part == "answer_both")
    assert code in " ".join(found.notes)
    assert events(run_dir, "self_evaluation")[0]["causes"] == [code]
    assert read_json(run_dir / SUMMARY_NAME)["adapter_id"]


def test_a_device_that_refuses_everything_after_a_failure_fails_no_run(monkeypatch):
    def refuse() -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    def fail() -> None:
        raise KeyError("x")

    monkeypatch.setattr(torch.cuda, "empty_cache", refuse)
    work = object.__new__(_Evaluation)
    work.notes, work.causes = [], []
    work.attempt("Sample answers", fail)
    assert work.causes == ["INTERNAL_ERROR"]


class StopDuringEvaluation:
    """Requests a stop once the first row is scored, and never while steps are made."""

    def __init__(self, monkeypatch, kind: str) -> None:
        self._due, real = False, worker.training.self_evaluation.evaluate.score_rows
        self._kind = kind

        def score(*arguments):
            self._due = True
            return real(*arguments)

        monkeypatch.setattr(worker.training.self_evaluation.evaluate, "score_rows", score)

    @property
    def pause_requested(self) -> bool:
        return self._due and self._kind == "pause"

    @property
    def cancel_requested(self) -> bool:
        return self._due and self._kind == "cancel"


def test_a_pause_keeps_every_step_and_the_numbers_are_those_of_a_whole_run(tiny, held_out, tmp_path, monkeypatch):
    run, whole = held_out
    with monkeypatch.context() as patch, pytest.raises(StopRequested) as stopped:
        tiny.train(run, tmp_path / "first", stop=StopDuringEvaluation(patch, "pause"))
    assert stopped.value.exit_code == EXIT_PAUSED
    assert not (tmp_path / "first" / SUMMARY_NAME).exists()
    resumed = tiny.train(run, tmp_path / "second", list_checkpoints(tmp_path / "first")[-1])
    assert events(resumed, "step") == []
    assert evaluation_of(resumed) == evaluation_of(whole)
    assert adapter_bytes(resumed) == adapter_bytes(whole)


def test_a_cancel_ends_it_at_once(tiny, tmp_path, monkeypatch):
    with pytest.raises(StopRequested) as stopped:
        run = tiny.plan_run(tmp_path, exec={"epochs": 1})
        tiny.train(run, tmp_path / "run", stop=StopDuringEvaluation(monkeypatch, "cancel"))
    assert stopped.value.exit_code == EXIT_CANCELLED


def test_a_run_that_is_killed_there_each_time_finishes_without(tiny, tmp_path, monkeypatch):
    run = tiny.plan_run(tmp_path, exec={"epochs": 1})

    def kill(*_: object) -> None:
        raise KeyboardInterrupt  # no error of a program: nothing catches it

    monkeypatch.setattr(worker.training.self_evaluation.evaluate, "score_rows", kill)
    checkpoint = None
    for attempt in range(1 + MAX_TRIES):
        run_dir = tmp_path / f"run-{attempt}"
        if attempt == MAX_TRIES:
            tiny.train(run, run_dir, checkpoint)
            break
        with pytest.raises(KeyboardInterrupt):
            tiny.train(run, run_dir, checkpoint)
        checkpoint = list_checkpoints(run_dir)[-1]
    found = evaluation_of(run_dir)
    assert (found.loss, found.sample_answers) == (None, ())
    assert "Nothing was measured" in found.notes[0]


def test_a_pause_before_the_end_changes_nothing_of_it(tiny, plain, tmp_path):
    run, whole = plain
    with pytest.raises(StopRequested):
        tiny.train(run, tmp_path / "first", stop=PauseAfter(2))
    resumed = tiny.train(run, tmp_path / "second", list_checkpoints(tmp_path / "first")[-1])
    assert evaluation_of(resumed) == evaluation_of(whole)
