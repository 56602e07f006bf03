"""Code of an attack without a sandbox, and bombs beside honest items. Needs no package but Mens', so that every user's Python runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

from shared.sandbox.attacks import Target, fork, source_of, start_threads, take_memory
from shared.sandbox.client import Sandbox
from shared.sandbox.levels import Level
from shared.sandbox.probe import PROBE_LIMITS

_LIMITS = replace(PROBE_LIMITS, wall_seconds=60)
"""Beside bombs, and whatever else a machine does, an honest item may take long."""

_UNCONFINED = """
import json, os, sys
request = json.load(sys.stdin)
os.dup2(1, 3)
names = {}
exec(request["source"], names)
os.write(3, json.dumps({"score": names["grade"](None, request["item"])}).encode())
"""


def grade_unconfined(source: str, item: Target) -> float:
    """What a source's ``grade`` returns in a plain child process, which inherits a file as a careless parent would leave it."""
    with Path(os.devnull).open() as inherited:
        found = subprocess.run(
            [sys.executable, "-c", _UNCONFINED],
            input=json.dumps({"source": source, "item": item}),
            capture_output=True,
            text=True,
            check=True,
            pass_fds=(inherited.fileno(),),
            cwd=item["folder"],
        )
    return float(json.loads(found.stdout)["score"])


_HONEST = """
import threading
def grade(sample, item):
    thread = threading.Thread(target=len, args=('',)) if item['thread'] else None
    if thread: thread.start(), thread.join()
    return item['n']
"""


def neighbours_of_bombs(level: Level) -> str:
    """Have an item fork, start threads and take memory again and again beside another sandbox, another grader of the same one, and a
    process of the same user. Returns ``undisturbed``, or what went wrong.
    """
    # Without root nothing counts threads at the level landlock, so there are none.
    thread = level == "bubblewrap" or os.geteuid() == 0
    items = [{"n": n, "thread": thread} for n in range(20)]
    stop, rounds = threading.Event(), list[list[float]]()

    def bomb(sandbox: Sandbox) -> None:
        while not stop.is_set():
            rounds.append([sandbox.grade(source_of(each), {}, {}) for each in (fork, start_threads, take_memory)])

    with Sandbox(level, _LIMITS) as bombed, Sandbox(level) as other:
        bombed.grade(_HONEST, {}, items[0])
        bomber = threading.Thread(target=bomb, args=(bombed,))
        bomber.start()
        try:
            found = [[sandbox.grade(_HONEST, {}, item) for item in items] for sandbox in (other, bombed)]
            beside = [subprocess.run([sys.executable, "-S", "-c", "1"], check=False).returncode for _ in range(5)]
        finally:
            stop.set()
            bomber.join()
    wanted = [[float(item["n"]) for item in items]] * 2
    if (found, beside) != (wanted, [0] * 5) or not rounds or any(map(any, rounds)):
        return f"items {found}, processes beside {beside}, bombs {rounds}"
    return "undisturbed"
