"""Convert the trainer's telemetry into the events, progress and series that a job's owner sees while the job runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from shared.contract.choices import MethodType
from shared.counted_nouns import counted
from shared.database.job_states import Stage
from shared.database.records import NewEvent
from shared.job_progress import JobProgress, MergeProgress, SelfEvaluationProgress, TrainingProgress
from shared.job_series import ABSENT, CHUNK_STEPS, SeriesChunk, storable
from worker.run_folder import PREFERENCE_METRICS

MAX_METRIC_EVENTS = 200
"""Approximate number of step events that a job keeps, however many steps it has; progress itself is always current."""

PROGRESS_FIELDS = {
    "step": "step",
    "total_steps": "total_steps",
    "epoch": "epoch",
    "loss": "loss",
    "token_accuracy": "token_accuracy",
    "learning_rate": "learning_rate",
    "tokens_per_sec": "tokens_per_second",
    "eta_seconds_remaining": "eta_seconds",
    "progress_fraction": "fraction",
}
EVALUATION_EVENT = "self_evaluation_progress"
"""The trainer's event on the progress of its self-evaluation."""
SEND_SECONDS = 2.0
"""Seconds between two reports of a run's series."""
OF_STEPS = {
    "loss": "train_loss",
    "token_accuracy": "train_token_accuracy",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "tokens_per_sec": "tokens_per_second",
    "peak_memory_bytes": "memory_bytes",
    **{name: name for name in PREFERENCE_METRICS},
}
"""Fields of a step's telemetry, and the series that they belong to."""
OF_VALIDATIONS = {"val_loss": "valid_loss", "val_token_accuracy": "valid_token_accuracy"}
LOSSES = ("train_loss", "valid_loss", "grad_norm")
"""Series in which a missing value means that it was not finite; in other series, the step simply has no value."""
WARNINGS = ("gpu_fallback", "tracker_failed", "training_warning")


def to_events(telemetry: list[dict[str, Any]]) -> list[NewEvent]:
    """Convert lines of telemetry into job events; lines of an unknown kind give none."""
    events = []
    for line in telemetry:
        kind, payload = line["event"], line["payload"]
        if kind == "step":
            step, total = payload["step"], payload["total_steps"]
            if step in (1, total) or step % max(1, total // MAX_METRIC_EVENTS) == 0:
                events.append(
                    NewEvent(
                        level="warn" if payload["loss"] is None else "info",
                        type="metrics",
                        message=f"Step {step}/{total}: training loss={_loss(payload['loss'])}",
                        data={
                            "step": step,
                            "train_loss": payload["loss"],
                            "total_steps": total,
                            "train_mean_token_accuracy": payload["token_accuracy"],
                            **{name: payload[name] for name in PREFERENCE_METRICS if name in payload},
                        },
                    )
                )
        elif kind == "validation":
            text = f"Step {payload['step']}: validation loss={_loss(payload['val_loss'])}"
            events.append(NewEvent(type="metrics", message=text, data=payload))
        elif kind == EVALUATION_EVENT:
            if payload["items_total"] and not payload["items_done"]:
                activity = f"{payload['items_total']} {payload['activity'].replace('_', ' ')}"
                events.append(NewEvent(message=f"Self-evaluation: {activity}.", data=payload))
        elif message := _message(kind, payload):
            events.append(NewEvent(level="warn" if kind in WARNINGS else "info", message=message, data=payload))
    return events


def to_progress(telemetry: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the newest progress of each kind in some lines of telemetry, as :data:`JobProgress` stores it; empty if they
    contain none. The last step of a training may be in the same lines as its self-evaluation.
    """
    newest: dict[str, dict[str, Any]] = {}
    for line in telemetry:
        if line["event"] in _PROGRESS:
            newest.pop(line["event"], None)  # the kind that comes last names the progress
            newest[line["event"]] = line["payload"]
    progress: dict[str, Any] = {}
    for event, payload in newest.items():
        progress |= _PROGRESS[event](payload).model_dump()
    return progress


def to_stage(telemetry: list[dict[str, Any]]) -> Stage | None:
    """Return the stage that a trainer has reached according to these lines; None if they do not show it."""
    newest = next((line["event"] for line in reversed(telemetry) if line["event"] in _STAGES), None)
    return _STAGES[newest] if newest else None


def _training(payload: dict[str, Any]) -> JobProgress:
    return TrainingProgress.model_validate({ours: payload[theirs] for theirs, ours in PROGRESS_FIELDS.items()})


def _merge(payload: dict[str, Any]) -> JobProgress:
    shard, of = payload["shard"], payload["of"]
    return MergeProgress(shard=shard, of=of, fraction=shard / of)


_PROGRESS: dict[str, Callable[[dict[str, Any]], JobProgress]] = {
    "step": _training,
    EVALUATION_EVENT: SelfEvaluationProgress.model_validate,
    "merge_shard": _merge,
}
_STAGES = {"step": Stage.TRAINING, EVALUATION_EVENT: Stage.SELF_EVALUATION}


def _loss(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"


def _message(kind: str, payload: dict[str, Any]) -> str | None:
    """Return the message of a line without metrics; None if its kind is not shown."""
    match kind:
        case "train_start":
            total, device = payload["planned_optimizer_steps_total"], payload["compute_device"]
            if step := payload["resumed_from_step"]:
                message = f"Training resumed from the checkpoint of step {step}: {counted(total, 'step')} on {device}."
            else:
                message = f"Training started: {counted(payload['pairs_loaded'], 'row')}, {counted(total, 'step')} on {device}."
        case "checkpoint":
            message = f"Checkpoint at step {payload['step']}."
        case "epoch_complete":
            losses = {"training loss": payload["avg_loss"], "validation loss": payload["val_loss"]}
            shown = ", ".join(f"{name}={loss:.4f}" for name, loss in losses.items() if loss is not None)
            phase = f" ({payload['phase']})" if payload.get("phase") else ""
            message = f"Epoch {payload['epoch'] + 1}{phase} complete after {counted(payload['global_step'], 'step')}"
            message += f": {shown}." if shown else "."
        case "reference_scores" if payload["computed"]:
            message = f"The reference model scored {counted(payload['rows'], 'row')} in {payload['seconds']:.0f} s."
        case "replay" if payload["at_risk"]:
            message = (
                f"Replay: the loss of {payload['at_risk']} of {counted(payload['watched'], 'watched row')} has risen;"
                f" epoch {payload['epoch'] + 1} replays them first."
            )
        case "train_complete":
            early = ": the validation loss did not improve" if payload.get("stopped_early") else ""
            message = f"Training complete after {counted(payload['global_step'], 'step')}{early}."
        case "self_evaluation":
            message = _evaluation_message(payload)
        case "merge_shard":
            message = f"Wrote shard {payload['shard']} of {payload['of']}."
        case _:
            return _warning(kind, payload)
    return message


_FALLS = {
    MethodType.DPO: ("both answers", "preferred", "Set preference.sft_weight, e.g. to 0.2"),
    MethodType.KTO: ("good and bad answers", "good", "Lower preference.undesirable_weight"),
}
"""Parts of a training method's warning: which answers have become less likely, for which of them the number is given,
and the remedy.
"""


def _warning(kind: str, payload: dict[str, Any]) -> str | None:
    """Return the message of a kind of warning; None for other kinds of events."""
    match kind:
        case "gpu_fallback":
            causes = ", ".join(payload["causes"])
            return f"{payload['component']} runs on the CPU, not on {payload['requested_device_kind']}: {causes}."
        case "training_warning":
            # An attempt that an earlier release started does not name its method.
            answers, good, remedy = _FALLS[payload.get("method", MethodType.DPO)]
            return (
                f"{payload['code']}: for {counted(payload['steps'], 'step')} {answers} have been much less likely than they are to the reference"
                f" (log-probability of the {good} ones: {payload['logps_chosen']:.1f}). {remedy}, or lower exec.learning_rate."
            )
        case "tracker_failed":
            return f"The tracker {payload['tracker']} was dropped ({payload['error']}); training continues."
        case _:
            return None


def _evaluation_message(payload: dict[str, Any]) -> str:
    rows = f"Compared with its base on {counted(payload['rows'], payload['source'].replace('_', ' ') + ' row')}"
    # An attempt that an earlier release started did not count them.
    if copies := payload.get("held_out_copies"):
        rows += f", {copies} of which are also in the training rows"
    changes = []
    if payload["base_loss"] is not None:
        changes.append(f"loss {payload['base_loss']:.4f} to {payload['tuned_loss']:.4f}")
    if payload["base_token_accuracy"] is not None:
        before, after = 100 * payload["base_token_accuracy"], 100 * payload["tuned_token_accuracy"]
        changes.append(f"token accuracy {before:.1f} % to {after:.1f} %")
    causes = ", ".join(payload["causes"]) or "no row has an answer that the adapter should give"
    measured = ", ".join(changes) or f"nothing was measured ({causes})"
    # Usually zero: the served model gives the answers later.
    answers = f"{counted(payload['sample_answers'], 'sample answer')}, " if payload["sample_answers"] else ""
    return f"{rows}: {measured}; {answers}{payload['seconds']:.1f} s."


class SeriesBuffer:
    """Chunks of one attempt's series that the database lacks, or has without their newest steps.

    Args:
        clock: returns seconds since an arbitrary moment.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._chunks: dict[tuple[str, int], list[float]] = {}
        self._unsent: set[tuple[str, int]] = set()
        self._sending: list[tuple[str, int]] = []
        self._due_at = clock()

    def add(self, telemetry: list[dict[str, Any]]) -> None:
        """Add the values in some lines of telemetry."""
        for name, step, value in _values(telemetry):
            number, position = divmod(step - 1, CHUNK_STEPS)
            chunk = self._chunks.setdefault((name, number), [ABSENT] * CHUNK_STEPS)
            chunk[position] = storable(value)
            self._unsent.add((name, number))

    def due(self) -> list[SeriesChunk]:
        """Return the chunks to send now; none if the last ones were sent shortly before."""
        self._sending = sorted(self._unsent) if self._clock() >= self._due_at else []
        return [SeriesChunk.of(*key, self._chunks[key]) for key in self._sending]

    def note_sent(self) -> None:
        """Drop the chunks that :meth:`due` returned last, except those that are still growing."""
        if not self._sending:
            return
        newest = dict(sorted(self._chunks))  # the last number of each name
        self._chunks = {(name, number): self._chunks[name, number] for name, number in newest.items()}
        self._unsent, self._sending = set(), []
        self._due_at = self._clock() + SEND_SECONDS

    def hurry(self) -> None:
        """Make the next report send all chunks."""
        self._due_at = self._clock()


def _values(telemetry: list[dict[str, Any]]) -> Iterator[tuple[str, int, float | None]]:
    for line in telemetry:
        names = {"step": OF_STEPS, "validation": OF_VALIDATIONS}.get(line["event"], {})
        payload = line["payload"]
        for field, name in names.items():
            if field in payload and (payload[field] is not None or name in LOSSES):
                yield name, payload["step"], payload[field]
