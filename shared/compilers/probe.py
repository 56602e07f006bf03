"""Probe whether this machine can confine compilers: a program that its input controls completely takes the compiler's
place, and attacks from within.
"""

from __future__ import annotations

import json
import sys
from functools import cache

from shared.compilers.compiled import run_compiler
from shared.compilers.compiler import Compiler
from shared.errors import Code, InvalidRequest, Unavailable
from shared.sandbox.attacks import ATTACKS, Target, source_of
from shared.sandbox.client import Sandbox
from shared.sandbox.levels import Attack, Level, Limits
from shared.sandbox.probe import missing, targets

LEVEL: Level = "bubblewrap"
"""The only level at which compilers run: at the other level, processes that they leave behind would not be ended."""
PROBE_LIMITS = Limits(wall_seconds=30, memory_bytes=1 << 30, file_bytes=1 << 20, tmpfs_bytes=64 << 20)
TAKEN_OVER = Compiler((sys.executable, "-s", "-P", "main.py"), "main.py", (sys.prefix, sys.base_prefix))
"""Python in the role of a compiler that its input controls completely."""

_TRY_EACH = """
import json, os, shutil
found = {}
for name, source in SOURCES.items():
    result_end, result = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(result_end)
        if result != 3:
            os.dup2(result, 3)
            os.close(result)
        try:
            names = {}
            exec(source, names)
            os.write(3, json.dumps({"score": names["grade"](None, TARGET)}).encode())
        except BaseException as error:
            os.write(3, json.dumps({"error": repr(error)}).encode())
        finally:
            os._exit(0)
    os.close(result)
    with os.fdopen(result_end) as answer:
        # A killed process has written nothing: its attack was stopped.
        found[name] = json.loads(answer.read() or '{"score": 0.0}')
    os.waitpid(pid, 0)
    for entry in os.scandir():
        if entry.name.startswith("filling"):
            os.unlink(entry)
print(json.dumps(found))
"""


def attack_program(target: Target) -> str:
    """Return a Python program that tries every attack, each in a process of its own, and prints the results as JSON."""
    sources = {attack.__name__: source_of(attack) for attack in ATTACKS}
    return f"SOURCES = {sources!r}\nTARGET = {target!r}\n{_TRY_EACH}"


def attack_compiler() -> tuple[Attack, ...]:
    """Try every attack from within a compiler."""
    with Sandbox(LEVEL, PROBE_LIMITS, parallel=1) as sandbox, targets() as target:
        ran = run_compiler(TAKEN_OVER, attack_program(target), sandbox)
    try:
        outcomes: dict[str, dict[str, object]] = json.loads(ran.output) if ran.compiles else {}
    except ValueError:
        outcomes = {}
    if set(outcomes) != {attack.__name__ for attack in ATTACKS}:
        return (Attack("all", held=False, detail=f"the attacks did not finish: {ran.output[-300:]}"),)
    return tuple(
        Attack(
            name, outcome.get("score") == 0, str(outcome.get("error") or ("it succeeded" if outcome["score"] else ""))
        )
        for name, outcome in outcomes.items()
    )


@cache
def _reason() -> str:
    """Return why this machine cannot confine compilers; empty when it can. Computed once in a process."""
    if reason := missing(LEVEL):
        return reason
    try:
        broken = [attack for attack in attack_compiler() if not attack.held]
    except Unavailable as error:
        return error.message
    return "not held: " + ", ".join(f"{attack.name} ({attack.detail})" for attack in broken) if broken else ""


def require_contained(language: str, sandbox: Sandbox) -> None:
    """Raise an error unless a compiler may run in this sandbox; the first call takes a second.

    Raises:
        InvalidRequest: ``SANDBOX_UNAVAILABLE``: the sandbox's level is not bubblewrap, or cannot confine compilers.
    """
    reason = f"the sandbox here is {sandbox.level}" if sandbox.level != LEVEL else _reason()
    if not reason:
        return
    message = (
        f"The compiler of {language} requires the sandbox level {LEVEL}, which this machine does not have: {reason}."
    )
    remedy = "Run it on a machine where bubblewrap can create namespaces; docs/evaluation.md lists the requirements."
    raise InvalidRequest(Code.SANDBOX_UNAVAILABLE, message, remedy=remedy, param="grader")
