"""TensorBoard, MLflow and Weights & Biases on a thread of their own.

A tracker is a convenience. It never slows a step: events pass through a queue, and a thread makes the network calls. It
never fails a run: the first error drops the tracker, and is reported once. It receives the plan's values and digests,
and the scalars of telemetry; no training text, no console output, no code.
"""

from __future__ import annotations

import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shared.contract.plan import ExecutionPlan
from worker.settings import DEFAULT_TRACKERS, TrackerName, parse_trackers
from worker.training.reporting.tracker_clients import CLIENTS, Point, TrackedRun, TrackedStatus, Tracker, Value

__all__ = [
    "DEFAULT_TRACKERS",
    "TrackedStatus",
    "TrackerName",
    "Trackers",
    "parse_trackers",
    "run_params",
    "trackers_of",
]
FINISH_SECONDS = 30.0
"""Longest wait of a finished run for data that is still to be sent."""
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Variables that shorten retries: otherwise MLflow would retry for many minutes before it reports that its server is
unavailable.
"""
DISCRETION = {"MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}
"""Variables that disable the clients' own telemetry, unless the operator enables it."""
VARIABLE = "MENS_TRACKERS"


class Failure(NamedTuple):
    """A dropped tracker, and the class of its error; the message is only in ``engine.log``."""

    tracker: str
    error: str


class Trackers:
    """All trackers of one run.

    Args:
        names: names of the trackers; see :func:`parse_trackers`.
    """

    def __init__(self, names: Iterable[TrackerName]) -> None:
        self._live: dict[str, Tracker] = {name.value: CLIENTS[name]() for name in names}
        self._failures: queue.SimpleQueue[Failure] = queue.SimpleQueue()
        self._inbox: queue.SimpleQueue[TrackedRun | Point | TrackedStatus] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, plan: ExecutionPlan, run_dir: Path, run_id: str, params: Mapping[str, Value] | None = None) -> None:
        """Start the trackers. Returns at once: the thread imports clients and connects to servers."""
        if self._live:
            for name, value in (PATIENCE | DISCRETION).items():
                os.environ.setdefault(name, value)
            run = TrackedRun(run_id, plan.adapter_name, run_dir, {**run_params(plan), **(params or {})})
            self._inbox.put(run)
            self._thread = threading.Thread(target=self._work, name="trackers", daemon=True)
            self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand over finite scalars of a step (1-based)."""
        if self._thread:
            self._inbox.put(Point(step, time.time_ns() // 1_000_000, dict(metrics)))

    def finish(self, status: TrackedStatus) -> None:
        """End the trackers, waiting a bounded time for pending data. Later calls do nothing."""
        if self._thread:
            self._inbox.put(status)
            self._thread.join(FINISH_SECONDS)
            if self._thread.is_alive():
                self._failures.put(Failure("all", "TimeoutError"))
            self._thread = None

    def failures(self) -> list[Failure]:
        """Return trackers that were dropped since the last call."""
        failures = []
        while not self._failures.empty():
            failures.append(self._failures.get())
        return failures

    def _work(self) -> None:
        """Take all waiting points and write them in one call per tracker, until the end is reported."""
        while True:
            items = [self._inbox.get()]
            while not self._inbox.empty():
                items.append(self._inbox.get())
            for run in (item for item in items if isinstance(item, TrackedRun)):
                self._call_each(partial(_start, run))
            if points := [item for item in items if isinstance(item, Point)]:
                self._call_each(partial(_write, points))
            for status in (item for item in items if isinstance(item, TrackedStatus)):
                self._call_each(partial(_finish, status))
                return

    def _call_each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._live.items()):
            try:
                act(tracker)
            except BaseException as error:  # a client may raise SystemExit, and only this thread would end
                del self._live[name]
                print(f"the tracker {name} is dropped: {without_credentials(repr(error))}", file=sys.stderr, flush=True)
                self._failures.put(Failure(name, type(error).__name__))


def trackers_of(environment: Mapping[str, str]) -> Trackers:
    """Return the trackers that ``MENS_TRACKERS`` names; the default ones if it is unset or empty."""
    text = environment.get(VARIABLE)
    return Trackers(parse_trackers(text) if text else DEFAULT_TRACKERS)


def run_params(plan: ExecutionPlan) -> dict[str, Value]:
    """Return a plan's values by dotted path, with its digests; lists as strings."""
    params: dict[str, Value] = {
        "base_model": plan.base.name,
        "execution_kernel": plan.execution_kernel,
        "contract_digest": plan.contract_digest,
        "plan_digest": plan.digest,
        "train_file_sha256": plan.train.sha256,
        "optimizer_steps": plan.optimizer_steps,
    }
    return params | flatten(plan.contract.model_dump(mode="json"))


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Value]:
    """Flatten nested sections into ``section.field``; null values are left out."""
    flat: dict[str, Value] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            flat |= flatten(inner, f"{prefix}{key}.")
        elif isinstance(inner, list):
            flat[prefix + key] = ", ".join(map(str, inner))
        elif inner is not None:
            flat[prefix + key] = inner
    return flat


def without_credentials(text: str) -> str:
    """Return a message without the users and passwords in its URLs."""
    return re.sub(r"//[^/@\s]+@", "//…@", text)


def _start(run: TrackedRun, tracker: Tracker) -> None:
    tracker.start(run)


def _write(points: list[Point], tracker: Tracker) -> None:
    tracker.write(points)


def _finish(status: TrackedStatus, tracker: Tracker) -> None:
    tracker.finish(status)
