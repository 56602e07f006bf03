"""Runs the parts of a stage in turn, within its time limit, and reports the parts that were not run."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from bench.acceptance.results import PartResult
from bench.harness.command import BenchFailed, PeerMissing
from bench.harness.processes import VariantFailed

SECONDS = 540.0
"""Time limit of a stage: machines that are lent per command often end the command after ten minutes."""


class TimeUp(Exception):
    """A stage has used up its time."""


def _nothing() -> bool:
    return True


@dataclass(frozen=True)
class StageWork:
    """The work of a stage.

    Attributes:
        parts: measurements, in the order in which they run.
        conclude: reports results of several parts together, and returns whether their goals are met; it also runs if
            the stage was cut short.
    """

    parts: dict[str, Callable[[], PartResult]]
    conclude: Callable[[], bool] = field(default=_nothing)


def run_work(name: str, work: StageWork, *, smoke: bool, seconds: float = SECONDS) -> bool:
    """Run all parts, and print the table and then the goals' lines.

    A part that fails does not end the stage, except in a smoke run, whose purpose is to find faults.

    Args:
        name: the stage's name.
        seconds: time for all parts.

    Returns:
        whether every part was done and every goal is met.

    Raises:
        BenchFailed: in a smoke run, a part has failed.
    """
    done: dict[str, PartResult] = {}
    rows: dict[str, str] = {}
    began = time.monotonic()
    try:
        with alarm(seconds):
            for part, measure in work.parts.items():
                before = time.monotonic()
                try:
                    done[part] = measure()
                    result = str(done[part])
                except (BenchFailed, PeerMissing) as failure:
                    if smoke:
                        raise
                    print(failure, file=sys.stderr, flush=True)
                    result = f"failed: {failure.reason if isinstance(failure, VariantFailed) else failure}"
                rows[part] = f"{part:<18} {time.monotonic() - before:7.1f}  {result}"
                print(f"  {part} took {time.monotonic() - before:.0f} s", flush=True)
    except TimeUp:
        print(f"  cut after {seconds:.0f} s", flush=True)
    not_done = [part for part in work.parts if part not in done]
    print(f"stage {name}, {time.monotonic() - began:.0f} s\n{'part':<18} {'seconds':>7}")
    for part in work.parts:
        print(rows.get(part, f"{part:<18} {'-':>7}  not run: the stage's {seconds:.0f} s were used up"))
    met = [work.conclude(), *(goal.judge(smoke=smoke) for part_result in done.values() for goal in part_result.goals)]
    if not_done:
        print(json.dumps({"stage": name, "not_done": not_done, "pass": False}), flush=True)
    return all(met) and not not_done


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise in this thread once the time is over, even while it waits for a process.

    Raises:
        TimeUp: the block has taken that long.
    """

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
