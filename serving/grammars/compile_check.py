"""Measure the cost of a grammar in a child process before the engine compiles it. Results are cached.

The grammars of one caller are checked one after the other, so that they do not delay other callers; the number of
concurrent checks is limited.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import socket
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import NamedTuple
from weakref import WeakValueDictionary

from serving.grammars.compile_server import DONE, STARTED
from shared.contained.process import ContainedProcess

MAX_PROCESSES = 4
"""Number of grammars that are checked at once."""
MAX_REMEMBERED = 10_000
END_SECONDS = 5.0
MEMORY_BYTES = 1 << 30
"""Memory that a compilation may use in addition to the memory of the vocabulary."""

log = logging.getLogger("vllm.mens.grammars")


class GrammarTooCostly(Exception):
    """Compiling a grammar, or generating a few tokens with it, takes too much time or memory."""


class Grammar(NamedTuple):
    """A grammar as the arguments of xgrammar's compiler.

    Attributes:
        kind: one of the kinds of :func:`serving.grammars.compile_server.compile_grammar`.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class CheckLimits:
    """Limits of one grammar's cost.

    Attributes:
        seconds: processor time to compile the grammar and to generate a few tokens with it.
        white_space: largest number of consecutive white-space characters in JSON.
    """

    seconds: float
    white_space: int
    memory_bytes: int = MEMORY_BYTES


class CompileCheck:
    """Checks grammars; used from one event loop.

    Args:
        vocabulary: returns xgrammar's vocabulary as JSON; called in a thread, at the first check.
        limits: limits of one grammar.
    """

    def __init__(self, vocabulary: Callable[[], str], limits: CheckLimits) -> None:
        self._vocabulary = vocabulary
        self._limits = limits
        self._server: _Server | None = None
        # Start only one server, even if many requests wait for it.
        self._starting = asyncio.Lock()
        self._processes = asyncio.Semaphore(MAX_PROCESSES)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._is_affordable: OrderedDict[bytes, bool] = OrderedDict()

    async def check(self, grammar: Grammar, caller: str) -> None:
        """Check a grammar; return as soon as the engine may compile it. A cancellation ends the child process.

        Args:
            caller: the caller, whose grammars are checked one after the other.

        Raises:
            GrammarTooCostly: the engine may not compile the grammar.
        """
        digest = hashlib.sha256(json.dumps(grammar).encode()).digest()
        # The dictionary of locks is weak: a lock exists as long as a caller waits for it.
        turn = self._turns.setdefault(caller, asyncio.Lock())
        if digest not in self._is_affordable:
            async with turn, self._processes:
                # Look again: while this caller waited, the same grammar may have been checked.
                if digest not in self._is_affordable:
                    self._remember(digest, affordable=await self._compile(grammar))
        if not self._is_affordable[digest]:
            raise GrammarTooCostly(
                f"The schema or grammar takes more than {self._limits.seconds:g} s of processor time, or too much memory, "
                "to compile."
            )

    def _remember(self, digest: bytes, *, affordable: bool) -> None:
        self._is_affordable[digest] = affordable
        if len(self._is_affordable) > MAX_REMEMBERED:
            self._is_affordable.popitem(last=False)

    async def _compile(self, grammar: Grammar) -> bool:
        """Return whether the child process finished. If the server had ended before it could fork a child, restart the
        server and try once more.
        """
        job = json.dumps({**grammar._asdict(), **asdict(self._limits)}).encode() + b"\n"
        for _ in range(2):
            server = await self._running_server()
            answer = await _ask(server.control, job)
            if answer.startswith(STARTED):
                return answer.endswith(DONE)
            # Another check may have replaced the server already.
            if self._server is server:
                self._server = None
                await asyncio.to_thread(server.end)
        raise RuntimeError("The process that checks grammars does not start.")

    async def _running_server(self) -> _Server:
        async with self._starting:
            if self._server is None:
                self._server = await asyncio.to_thread(_Server.start, self._vocabulary)
                log.info("Grammars are checked by the child process %d.", self._server.process.first)
            return self._server

    def close(self) -> None:
        """End the process."""
        if self._server is not None:
            self._server.end()


@dataclass(frozen=True)
class _Server:
    process: ContainedProcess
    control: socket.socket

    @classmethod
    def start(cls, vocabulary: Callable[[], str]) -> _Server:
        control, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "serving.grammars.compile_server", str(theirs.fileno())]
            process = ContainedProcess(command, pass_fds=[theirs.fileno()], stdin=subprocess.PIPE)
        process.send(vocabulary().encode())
        process.end_input()
        return cls(process, control)

    def end(self) -> None:
        """Close the server's control socket, and wait until the server has ended."""
        self.control.close()
        self.process.end(END_SECONDS)


async def _ask(control: socket.socket, job: bytes) -> bytes:
    """Send a job; return the child process's output when it ends. Cancelling this coroutine ends the child."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with ours:
        try:
            with theirs:
                socket.send_fds(control, [b"g"], [theirs.fileno()])
            ours.setblocking(False)
            await loop.sock_sendall(ours, job)
            answer = b""
            while part := await loop.sock_recv(ours, 16):
                answer += part
        except OSError as error:
            log.warning("The process that checks grammars has ended (%s).", error)
            return b""
    return answer
