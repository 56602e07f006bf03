"""Find the level at which this machine can confine code: a level at which any attack succeeds is rejected."""

from __future__ import annotations

import os
import platform
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from shared.errors import Code, MensError
from shared.sandbox import bubblewrap, landlock, seccomp
from shared.sandbox.attacks import ATTACKS, Target, source_of
from shared.sandbox.client import Sandbox
from shared.sandbox.environment import environment
from shared.sandbox.levels import LEVELS, Attack, Choice, Level, Limits, SandboxReport

PROBE_LIMITS = Limits(wall_seconds=10, memory_bytes=1 << 30, file_bytes=1 << 20)
"""Limits of the probe: files are so small that filling the disk takes no time."""
_MACHINES = ("x86_64", "aarch64")
_WORK = "import fractions\ndef grade(sample, item): return float(fractions.Fraction(1, item['denominator']))"


def probe(choice: Choice = "auto") -> SandboxReport:
    """Find the strongest level that stops every attack here; takes about a second.

    Args:
        choice: ``auto``, the one level that may be taken, or ``off``.
    """
    if choice == "off":
        return SandboxReport(None, {"off": "MENS_SANDBOX is off"})
    reasons: dict[str, str] = {}
    for level in LEVELS if choice == "auto" else (choice,):
        if reason := missing(level):
            reasons[level] = reason
            continue
        try:
            attacks = attack(level)
        except MensError as error:
            reasons[level] = error.message
            continue
        broken = [failed_attack for failed_attack in attacks if not failed_attack.held]
        if not broken:
            return SandboxReport(level, reasons, attacks)
        reasons[level] = "not held: " + ", ".join(
            f"{failed_attack.name} ({failed_attack.detail})" for failed_attack in broken
        )
    return SandboxReport(None, reasons)


@cache
def report_of_machine(choice: Choice = "auto") -> SandboxReport:
    """Return the result of a probe, which is made once in a process."""
    return probe(choice)


def missing(level: Level) -> str:
    """Return the requirement of a level that this machine lacks; empty when it has all."""
    if not sys.platform.startswith("linux") or platform.machine() not in _MACHINES:
        return f"it needs Linux on {' or '.join(_MACHINES)}"
    if not landlock.abi_version():
        return "the kernel does not support Landlock, or it is not enabled (Linux 5.13 or later, lsm=landlock,…)"
    try:
        seccomp.load_library()
    except OSError:
        return "libseccomp.so.2 is not installed (apt-get install libseccomp2)"
    if level == "bubblewrap" and not bubblewrap.is_installed():
        return "bubblewrap is not installed (apt-get install bubblewrap)"
    return ""


def attack(level: Level) -> tuple[Attack, ...]:
    """Try every attack at a level, and check that honest code runs.

    Raises:
        MensError: no code runs at this level.
    """
    with ExitStack() as stack:
        sandbox = stack.enter_context(Sandbox(level, PROBE_LIMITS))
        target = stack.enter_context(targets())
        sandbox.grade(_WORK, {}, {"denominator": 4})
        return tuple(_try(sandbox, program.__name__, source_of(program), target) for program in ATTACKS)


def _try(sandbox: Sandbox, name: str, source: str, target: Target) -> Attack:
    try:
        succeeded = sandbox.grade(source, {}, target) != 0
    except MensError as error:
        # A killed process means that the attack was stopped. An exception that no attack expects, or a failing sandbox,
        # shows nothing.
        killed = error.code in (Code.GRADER_TIMEOUT, Code.GRADER_FAILED) and not error.details.get("traceback")
        return Attack(name, killed, error.message)
    return Attack(name, not succeeded, "it succeeded" if succeeded else "")


@contextmanager
def targets() -> Iterator[Target]:
    """Set up targets for attacks: a file and a folder, listening sockets, this process."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mens-probe-")))
        folder.chmod(0o777)
        secret = folder / "secret"
        secret.write_text("secret")
        secret.chmod(0o666)
        abstract = f"mens-probe-{os.getpid()}-{folder.name}"
        tcp, udp = (socket.socket(socket.AF_INET, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM))
        unix, named = (socket.socket(socket.AF_UNIX) for _ in range(2))
        for listening in (tcp, udp, unix, named):
            stack.enter_context(listening)
        tcp.bind(("127.0.0.1", 0))
        udp.bind(tcp.getsockname())
        unix.bind(str(folder / "socket"))
        named.bind("\0" + abstract)
        for listening in (tcp, unix, named):
            listening.listen(8)
        (folder / "socket").chmod(0o666)
        yield {
            "secret": str(secret),
            "folder": str(folder),
            "port": tcp.getsockname()[1],
            "unix": str(folder / "socket"),
            "abstract": abstract,
            "pid": os.getpid(),
            "variables": sorted(os.environ.keys() - environment().keys() - {"HOME", "TMPDIR", "PWD"}),
        }
