"""Code that attacks without a sandbox, and resource bombs next to ordinary items. It needs only Mens's own packages, so
that every user's Python can run it.
"""

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
"""Time allowed for an ordinary item, which may be slow next to bombs and other load."""

_UNCONFINED = """
import json, os, sys
request = json.load(sys.stdin)
os.dup2(1, 3)
names = {}
exec(request["source"], names)
os.write(3, json.dumps({"score": names["grade"](None, request["item"])}).encode())
"""


def grade_unconfined(source: str, item: Target) -> float:
    """Result of a source's ``grade`` in a plain child process, which inherits an open file, as from a careless parent."""
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
    """Let an item repeatedly fork, start threads and allocate memory, next to another sandbox, another grader of the
    same sandbox, and a process of the same user. Return ``undisturbed``, or a description of what went wrong.
    """
    # Without root, threads are not limited at the level landlock, so none are started.
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
