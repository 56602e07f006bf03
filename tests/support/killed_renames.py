"""Run programs that are killed at a rename: at the first, the second, and so on."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

_KILLED, _FAILED = 9, 1


def each_kill(folder: Path, program: Callable[[Path], object]) -> Iterator[Path]:
    """Run a program in a new folder again and again, each time killed one rename later; yield each folder as it was
    left.

    Each run is a forked process that ends without cleaning up, as after ``kill -9``. The last run, which is not killed,
    is not yielded.
    """
    for renames in count():
        place = folder / f"killed-{renames}"
        place.mkdir()
        if not (child := os.fork()):
            _run(program, place, renames)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, _KILLED), f"the program failed with {code} in {place}"
        if code == 0:
            return
        yield place


def _run(program: Callable[[Path], object], place: Path, renames: int) -> None:
    rename, made = Path.replace, 0

    def limited(self: Path, target: Path) -> Path:
        nonlocal made
        if made == renames:
            os._exit(_KILLED)
        made += 1
        return rename(self, target)

    Path.replace = limited  # type: ignore[method-assign, assignment]
    try:
        program(place)
    except BaseException:
        traceback.print_exc()
        os._exit(_FAILED)
    os._exit(0)
