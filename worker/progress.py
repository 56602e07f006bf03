"""From the engine's telemetry to the ledger's events and progress: what people see while a job runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shared.job import NewEvent

MAX_METRIC_EVENTS = 200
"""About as many step events as a job keeps, however many steps it has; progress itself is always current."""

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


def to_events(telemetry: list[dict[str, Any]]) -> list[NewEvent]:
    """Ledger events for a piece of telemetry."""
    events = (_event(line["event"], line["payload"]) for line in telemetry)
    return [event for event in events if event]


def to_progress(telemetry: list[dict[str, Any]]) -> dict[str, Any]:
    """The newest progress in a piece of telemetry; empty when it holds no step."""
    steps = [line["payload"] for line in telemetry if line["event"] == "step"]
    return {ours: steps[-1][theirs] for theirs, ours in PROGRESS_FIELDS.items()} if steps else {}


def _event(kind: str, payload: dict[str, Any]) -> NewEvent | None:
    if kind == "step":
        return _step_event(payload) if _shown(payload["step"], payload["total_steps"]) else None
    if kind == "validation":
        loss = "not finite" if payload["val_loss"] is None else f"{payload['val_loss']:.4f}"
        return NewEvent(type="metrics", message=f"Step {payload['step']}: validation loss={loss}", data=payload)
    if kind in WARNINGS:
        return NewEvent(level="warn", message=WARNINGS[kind](payload), data=payload)
    return NewEvent(message=MESSAGES[kind](payload), data=payload) if kind in MESSAGES else None


def _complete_message(payload: dict[str, Any]) -> str:
    early = ": the validation loss got no better" if payload.get("stopped_early") else ""
    return f"Training complete after {payload['global_step']} steps{early}."


def _start_message(payload: dict[str, Any]) -> str:
    resumed = payload["resumed_from_step"]
    total, device = payload["planned_optimizer_steps_total"], payload["compute_device"]
    if resumed:
        return f"Training resumed from the checkpoint of step {resumed}: {total} steps on {device}."
    return f"Training started: {payload['pairs_loaded']} rows, {total} steps on {device}."


def _epoch_message(payload: dict[str, Any]) -> str:
    losses = {"training loss": payload["avg_loss"], "validation loss": payload["val_loss"]}
    told = ", ".join(f"{name}={loss:.4f}" for name, loss in losses.items() if loss is not None)
    return f"Epoch {payload['epoch'] + 1} complete after {payload['global_step']} steps{': ' if told else ''}{told}."


def _fallback_message(payload: dict[str, Any]) -> str:
    causes = ", ".join(payload["causes"])
    return f"{payload['component']} runs on the CPU, not on {payload['requested_device_kind']}: {causes}."


def _step_event(payload: dict[str, Any]) -> NewEvent:
    loss = "not finite" if payload["loss"] is None else f"{payload['loss']:.4f}"
    message = f"Step {payload['step']}/{payload['total_steps']}: training loss={loss}"
    data = {"step": payload["step"], "train_loss": payload["loss"], "total_steps": payload["total_steps"]}
    data["train_mean_token_accuracy"] = payload["token_accuracy"]
    return NewEvent(level="info" if payload["loss"] is not None else "warn", type="metrics", message=message, data=data)


def _shown(step: int, total: int) -> bool:
    return step in (1, total) or step % max(1, total // MAX_METRIC_EVENTS) == 0


MESSAGES: dict[str, Callable[[dict[str, Any]], str]] = {
    "train_start": _start_message,
    "checkpoint": "Checkpoint at step {step}.".format_map,
    "epoch_complete": _epoch_message,
    "train_complete": _complete_message,
}
WARNINGS: dict[str, Callable[[dict[str, Any]], str]] = {
    "gpu_fallback": _fallback_message,
    "tracker_failed": "The tracker {tracker} was dropped ({error}); training goes on.".format_map,
}
