"""Runs the parts of a stage in turn, within its time; says what was not done."""

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
"""Time of a stage: machines that are lent by the command often end one after ten minutes."""


class TimeUp(Exception):
    """The time of a stage is over."""


def _nothing() -> bool:
    return True


@dataclass(frozen=True)
class StageWork:
    """StageWork of a stage.

    Attributes:
        parts: what it measures, in this order.
        conclude: reports what several parts have measured together, and returns whether their goals are met; it also
            runs after a stage that was cut.
    """

    parts: dict[str, Callable[[], PartResult]]
    conclude: Callable[[], bool] = field(default=_nothing)


def run_work(name: str, work: StageWork, *, smoke: bool, seconds: float = SECONDS) -> bool:
    """Run all parts, and print the table and then the goals' lines.

    A part that fails ends neither the stage nor the other parts, but in a smoke run, which is there to find faults.

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
        print(rows.get(part, f"{part:<18} {'-':>7}  not done: the stage's {seconds:.0f} s were over"))
    met = [work.conclude(), *(goal.judge(smoke=smoke) for part_result in done.values() for goal in part_result.goals)]
    if not_done:
        print(json.dumps({"stage": name, "not_done": not_done, "pass": False}), flush=True)
    return all(met) and not not_done


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise in this thread once the time is over, also in the middle of waiting for a process.

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
