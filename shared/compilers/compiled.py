"""Run a compiler on code in a separate bubblewrap; when that ends, every process in it ends. Start reading here.

A compiler is trusted no more than the code it reads: it may start processes, execute its own programs and nothing else.
It has no network, can read only the files of the machine that it was given, and has the sandbox's limits for one item.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import IO

from shared.compilers.compiler import Compiler
from shared.contained.limits import end_first
from shared.contained.process import EXIT_SECONDS, ContainedProcess
from shared.errors import Unavailable
from shared.sandbox import bubblewrap, seccomp
from shared.sandbox.child import failed
from shared.sandbox.client import Sandbox
from shared.sandbox.environment import environment
from shared.sandbox.levels import MAX_OUTPUT_BYTES, Limits

CHECK_SECONDS = 0.02
"""Interval at which time and memory of a running compiler are measured."""
PROCESSES = 32
"""Largest number of processes and threads of a compiler: gcc has two, rustc as many threads as the machine has cores.
"""
RETRY_SECONDS = (0.1, 0.5)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Compilation:
    """Outcome of a compiler run.

    Attributes:
        exit_code: 0 when it accepts the code; above 128 when a signal ended it; None when it exceeded a limit.
        output: the first 64 kB of its output, or the limit that it exceeded.
    """

    exit_code: int | None
    output: str

    @property
    def compiles(self) -> bool:
        """Return true if the compiler accepted the code."""
        return self.exit_code == 0


def run_compiler(compiler: Compiler, text: str, sandbox: Sandbox) -> Compilation:
    """Run a compiler on a piece of code. Its output files are lost.

    The caller must know that this machine can confine compilers; `probe.py` tests it.

    Args:
        sandbox: the sandbox whose limits apply to all processes of the compiler together, and whose turns the compiler
            takes.

    Raises:
        Unavailable: ``SANDBOX_FAILED``: bubblewrap or the compiler did not start in three attempts, or the sandbox was
            closed.
    """
    own_disk = sandbox.limits.tmpfs_bytes // sandbox.parallel
    limits = replace(sandbox.limits, threads=PROCESSES, tmpfs_bytes=own_disk)
    with sandbox.turn():
        for pause in RETRY_SECONDS:
            with suppress(Unavailable):
                return _run_once(compiler, text, limits, sandbox)
            time.sleep(pause)
        return _run_once(compiler, text, limits, sandbox)


def _run_once(compiler: Compiler, text: str, limits: Limits, sandbox: Sandbox) -> Compilation:
    if sandbox.is_closed:
        raise failed("it was closed")
    with ExitStack() as stack:
        source = stack.enter_context(tempfile.TemporaryFile())
        source.write(text.encode(errors="surrogatepass"))
        source.seek(0)
        running = stack.enter_context(_started(compiler, limits, source))
        output = bytearray()
        reason = _watch(running.child, limits, sandbox, output)
        # Its output is closed; its exit code is available a moment later.
        exit_code = running.child.end(0.0 if reason else EXIT_SECONDS)
        report = running.report.read().decode(errors="replace")
    if sandbox.is_closed:
        raise failed("it was closed")
    if reason:
        return Compilation(None, reason)
    if report != "+":
        raise failed(report.removeprefix("+") or output.decode(errors="replace").strip()[-1000:] or "bubblewrap ended")
    return Compilation(exit_code, output.decode(errors="replace"))


@dataclass(frozen=True, slots=True)
class _Running:
    """A running compiler.

    Attributes:
        report: what the process wrote before it became the compiler; read it after it has ended.
    """

    child: ContainedProcess
    report: IO[bytes]


@contextmanager
def _started(compiler: Compiler, limits: Limits, source: IO[bytes]) -> Iterator[_Running]:
    report, report_end = os.pipe()
    with os.fdopen(report, "rb") as reported:
        try:
            child = _start(compiler, limits, source, report_end)
        except OSError as error:
            raise failed(str(error)) from None
        finally:
            # Otherwise the read of the report would wait for this process itself.
            os.close(report_end)
        try:
            end_first(child.first)
            yield _Running(child, reported)
        finally:
            child.end()


def _start(compiler: Compiler, limits: Limits, source: IO[bytes], report: int) -> ContainedProcess:
    def wrap(command: Sequence[str], info: int) -> list[str]:
        executables = compiler.executables
        return bubblewrap.wrapped(command, environment(), info, limits.tmpfs_bytes, bound=executables, as_first=False)

    config = {
        "command": compiler.command,
        "file": compiler.file,
        "variables": dict(compiler.variables),
        "executables": [os.fspath(path) for path in compiler.executables],
        "limits": asdict(limits),
        "number": secrets.randbelow(1 << 26),
        "own_user": os.geteuid() == 0,
        "program": _program(),
        "report_fd": report,
    }
    return ContainedProcess(
        [sys.executable, "-s", "-P", "-m", "shared.compilers", json.dumps(config)],
        environment(),
        wrap=wrap,
        pass_fds=[report],
        stdin=source,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@cache
def _program() -> str:
    return base64.b64encode(seccomp.compiler_program()).decode()


def _watch(child: ContainedProcess, limits: Limits, sandbox: Sandbox, output: bytearray) -> str:
    """Read the output until the compiler ends; return the reason to kill it, or an empty string."""
    assert child.process.stdout
    descriptor, deadline = child.process.stdout.fileno(), time.monotonic() + limits.wall_seconds
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    measured_at = 0.0
    while not sandbox.is_closed:
        if poll.poll(CHECK_SECONDS * 1000):
            content = os.read(descriptor, MAX_OUTPUT_BYTES)
            # The output ends when every process of the namespace has ended, because each of them can write to it.
            if not content:
                return ""
            output += content[: MAX_OUTPUT_BYTES - len(output)]
        now = time.monotonic()
        if now > deadline:
            return f"it took longer than {limits.wall_seconds:g} s"
        if now - measured_at > CHECK_SECONDS:
            measured_at = now
            if _memory_of(child.first) > limits.memory_bytes:
                return f"its processes took more than {limits.memory_bytes >> 20} MB of memory"
    return "the sandbox was closed"


def _memory_of(pid: int) -> int:
    """Return the memory of a process and its descendants; shared memory counts for each of them."""
    total, waiting = 0, [pid]
    while waiting:
        folder = Path("/proc", str(waiting.pop()))
        # It may have ended meanwhile.
        with suppress(OSError, ValueError, IndexError):
            total += int((folder / "statm").read_text().split()[1]) * _PAGE_BYTES
            for task in (folder / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
    return total
