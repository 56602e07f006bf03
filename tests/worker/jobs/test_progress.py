"""Conversion of telemetry to a job's events, progress and series."""

from __future__ import annotations

import math

import pytest

from shared.database.job_states import Stage
from shared.job_progress import MergeProgress, SelfEvaluationProgress, read_progress
from shared.job_series import CHUNK_STEPS, SeriesChunk, unpack
from worker.jobs.progress import (
    EVALUATION_EVENT,
    MAX_METRIC_EVENTS,
    PROGRESS_FIELDS,
    SEND_SECONDS,
    SeriesBuffer,
    to_events,
    to_progress,
    to_stage,
)


def step(number: int, total: int = 10, loss: float | None = 2.5) -> dict:
    payload = dict.fromkeys(PROGRESS_FIELDS, 0) | {"step": number, "total_steps": total, "loss": loss, "epoch": 1}
    return {"event": "step", "payload": payload | {"token_accuracy": 0.5, "tokens_per_sec": 9.0}}


def start(resumed: int = 0) -> dict:
    payload = {"resumed_from_step": resumed, "planned_optimizer_steps_total": 10, "compute_device": "cpu"}
    return {"event": "train_start", "payload": payload | {"pairs_loaded": 6}}


def test_progress_is_the_newest_step():
    progress = to_progress([step(1), step(2), start()])
    assert progress["step"] == 2
    assert progress["tokens_per_second"] == 9.0
    assert set(progress) == {"kind", *PROGRESS_FIELDS.values()}


def test_self_evaluation_is_a_stage_and_progress_of_its_own():
    told = {"event": EVALUATION_EVENT, "payload": {"activity": "sample_answers", "items_done": 3, "items_total": 8}}
    lines = [step(10), told]
    assert to_stage(lines) is Stage.SELF_EVALUATION
    assert read_progress(to_progress(lines)) == SelfEvaluationProgress.model_validate(told["payload"])
    assert to_progress(lines)["step"] == 10, "the last step is kept, though the next line is of another kind"
    assert to_stage([step(1)]) is Stage.TRAINING
    assert to_stage([start()]) is None


def test_merged_shards_are_progress():
    progress = to_progress([{"event": "merge_shard", "payload": {"shard": 1, "of": 4}}])
    assert read_progress(progress) == MergeProgress(shard=1, of=4, fraction=0.25)


def test_no_step_is_not_progress():
    assert to_progress([]) == {}
    assert to_progress([start()]) == {}


def test_step_event_has_openais_metrics():
    event = to_events([step(3)])[0]
    assert (event.type, event.level, event.message) == ("metrics", "info", "Step 3/10: training loss=2.5000")
    assert event.data == {"step": 3, "train_loss": 2.5, "total_steps": 10, "train_mean_token_accuracy": 0.5}


def test_loss_that_is_not_finite_is_a_warning():
    event = to_events([step(3, loss=None)])[0]
    assert (event.level, event.message) == ("warn", "Step 3/10: training loss=not finite")


def test_start_and_resume():
    first, resumed = to_events([start(), start(4)])
    assert first.message == "Training started: 6 rows, 10 steps on cpu."
    assert resumed.message == "Training resumed from the checkpoint of step 4: 10 steps on cpu."


def test_other_kinds_of_events():
    telemetry = [
        {"event": "validation", "payload": {"step": 2, "val_loss": 1.25, "val_token_accuracy": 0.5}},
        {"event": "checkpoint", "payload": {"step": 2, "folder": "step-00000002", "metrics": {}}},
        {"event": "train_complete", "payload": {"global_step": 10, "final_adapter": "tiny@0"}},
        {"event": "something_new", "payload": {}},
    ]
    messages = [event.message for event in to_events(telemetry)]
    assert messages == [
        "Step 2: validation loss=1.2500",
        "Checkpoint at step 2.",
        "Training complete after 10 steps.",
    ]


@pytest.mark.parametrize("method", [None, "dpo", "kto"])
def test_remedy_for_unlikely_answers_is_one_that_the_method_takes(method: str | None):
    payload = {"code": "LIKELIHOOD_FALLS", "steps": 20, "logps_chosen": -30.0}
    payload |= {"method": method} if method else {}  # an earlier release's has none
    (event,) = to_events([{"event": "training_warning", "payload": payload}])
    assert "than they are to the reference" in event.message
    assert ("undesirable_weight" in event.message) == (method == "kto")
    assert ("sft_weight" in event.message) == (method != "kto")


def test_epoch_complete_message():
    payload = {"epoch": 0, "global_step": 6, "steps": 6, "avg_loss": 2.5, "val_loss": None}
    events = to_events(
        [
            {"event": "epoch_complete", "payload": payload},
            {"event": "epoch_complete", "payload": payload | {"epoch": 1, "val_loss": 1.25}},
            {"event": "epoch_complete", "payload": payload | {"avg_loss": None}},
            {"event": "epoch_complete", "payload": payload | {"avg_loss": None, "phase": "warmup"}},
        ]
    )
    assert [event.message for event in events] == [
        "Epoch 1 complete after 6 steps: training loss=2.5000.",
        "Epoch 2 complete after 6 steps: training loss=2.5000, validation loss=1.2500.",
        "Epoch 1 complete after 6 steps.",
        "Epoch 1 (warmup) complete after 6 steps.",
    ]


def test_reference_that_was_scored_has_a_message_and_a_resumed_one_has_none():
    payload = {"rows": 40, "seconds": 3.4, "reference_digest": "0" * 64, "computed": True}
    (event,) = to_events([{"event": "reference_scores", "payload": payload}])
    assert event.message == "The reference model scored 40 rows in 3 s."
    assert to_events([{"event": "reference_scores", "payload": payload | {"computed": False}}]) == []


def test_replay_message_names_what_has_risen():
    payload = {"epoch": 2, "watched": 20, "at_risk": 3, "mean_rise": 0.05, "largest_rise": 0.25}
    (event,) = to_events(
        [{"event": "replay", "payload": payload}, {"event": "replay", "payload": payload | {"at_risk": 0}}]
    )
    assert event.message == "Replay: the loss of 3 of 20 watched rows has risen; epoch 3 replays them first."


def test_warnings():
    causes = {"component": "trainer", "requested_device_kind": "cuda", "causes": ["no_cuda_device", "old_driver"]}
    events = to_events(
        [
            {"event": "gpu_fallback", "payload": causes},
            {"event": "tracker_failed", "payload": {"tracker": "mlflow", "error": "ConnectionError"}},
        ]
    )
    assert [event.level for event in events] == ["warn", "warn"]
    assert [event.message for event in events] == [
        "trainer runs on the CPU, not on cuda: no_cuda_device, old_driver.",
        "The tracker mlflow was dropped (ConnectionError); training continues.",
    ]


def test_step_events_of_a_long_run_are_bounded():
    total = 50 * MAX_METRIC_EVENTS
    steps = [event.data["step"] for event in to_events([step(number, total) for number in range(1, total + 1)])]
    assert MAX_METRIC_EVENTS <= len(steps) <= MAX_METRIC_EVENTS + 2
    assert (steps[0], steps[-1]) == (1, total)
    assert len(to_events([step(number, 7) for number in range(1, 8)])) == 7


def test_the_comparison_reports_held_out_rows_that_are_trained_on_too():
    payload = {"source": "held_out", "rows": 10, "held_out_copies": 4, "base_loss": None, "causes": [], "seconds": 1.0}
    payload |= {"base_token_accuracy": 0.25, "tuned_token_accuracy": 1.0, "sample_answers": 0}
    told = "Compared with its base on 10 held out rows, 4 of which are also in the training rows: token accuracy 25.0 % to 100.0 %"
    message = to_events([{"event": "self_evaluation", "payload": payload}])[0].message
    assert message == f"{told}; 1.0 s."
    (made,) = to_events([{"event": "self_evaluation", "payload": payload | {"sample_answers": 3}}])
    assert made.message == f"{told}; 3 sample answers, 1.0 s."
    nothing = {"activity": "sample_answers", "items_done": 0, "items_total": 0}
    assert to_events([{"event": "self_evaluation_progress", "payload": nothing}]) == []
    del payload["held_out_copies"]  # as an earlier release's trainer reports it
    assert "also in the training" not in to_events([{"event": "self_evaluation", "payload": payload}])[0].message


# -- series --------------------------------------------------------------------------------------------------------------


def validation(number: int, loss: float | None = 0.5) -> dict:
    return {"event": "validation", "payload": {"step": number, "val_loss": loss, "val_token_accuracy": 0.9}}


class StoppedClock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def values_of(chunks: list[SeriesChunk], name: str) -> dict[int, float]:
    """Values by step, of the chunks of a series."""
    found = {}
    for chunk in chunks:
        if chunk.name == name:
            values = enumerate(unpack(chunk.values), start=chunk.number * CHUNK_STEPS + 1)
            found |= {step: value for step, value in values if not math.isnan(value)}
    return found


def test_series_have_every_step_and_validation():
    buffer = SeriesBuffer(StoppedClock())
    extra = {"grad_norm": None, "peak_memory_bytes": 2**30, "kl": 0.25, "mfu": 0.5}
    buffer.add([step(1), step(2, loss=None), validation(2, loss=None), start()])
    buffer.add([{"event": "step", "payload": step(300)["payload"] | extra}])
    chunks = buffer.due()
    assert values_of(chunks, "train_loss") == {1: 2.5, 2: math.inf, 300: 2.5}
    assert values_of(chunks, "valid_loss") == {2: math.inf}
    assert values_of(chunks, "valid_token_accuracy") == {2: pytest.approx(0.9)}
    assert values_of(chunks, "grad_norm") == {300: math.inf}
    assert values_of(chunks, "memory_bytes") == {300: 2.0**30}
    assert values_of(chunks, "kl") == {300: 0.25}
    assert {chunk.name for chunk in chunks} == {
        "train_loss", "train_token_accuracy", "learning_rate", "tokens_per_second", "valid_loss", "valid_token_accuracy",
        "grad_norm", "memory_bytes", "kl",
    }  # fmt: skip


def test_series_are_sent_from_time_to_time_and_at_the_end():
    clock = StoppedClock()
    buffer = SeriesBuffer(clock)
    buffer.add([step(1)])
    assert values_of(buffer.due(), "train_loss") == {1: 2.5}
    buffer.note_sent()
    buffer.add([step(2)])
    clock.now = SEND_SECONDS - 0.1
    assert buffer.due() == []
    buffer.note_sent()  # of a report without series
    buffer.hurry()
    assert values_of(buffer.due(), "train_loss") == {1: 2.5, 2: 2.5}
    buffer.note_sent()
    clock.now += 2 * SEND_SECONDS
    assert buffer.due() == []


def test_series_that_were_not_accepted_are_sent_again():
    clock = StoppedClock()
    buffer = SeriesBuffer(clock)
    buffer.add([step(number) for number in range(1, CHUNK_STEPS + 1)])
    assert buffer.due() == buffer.due()
    buffer.add([step(number) for number in range(CHUNK_STEPS + 1, 3 * CHUNK_STEPS)])
    clock.now += SEND_SECONDS
    chunks = [chunk for chunk in buffer.due() if chunk.name == "train_loss"]
    assert [(chunk.number, chunk.first_step, chunk.last_step) for chunk in chunks] == [
        (0, 1, 256), (1, 257, 512), (2, 513, 767),
    ]  # fmt: skip
    buffer.note_sent()
    buffer.add([step(3 * CHUNK_STEPS)])
    buffer.hurry()
    (last,) = (chunk for chunk in buffer.due() if chunk.name == "train_loss")
    assert (last.number, last.first_step, last.last_step) == (2, 513, 768)


def test_step_between_due_and_sent_is_not_forgotten():
    clock = StoppedClock()
    buffer = SeriesBuffer(clock)
    buffer.note_sent()
    buffer.add([step(1)])
    clock.now = -1.0  # not due yet
    assert buffer.due() == []
    clock.now = 1.0  # due when the report has ended
    buffer.note_sent()
    assert values_of(buffer.due(), "train_loss") == {1: 2.5}
