"""Python graders of the API: each run has a sandbox, and two callers never share one at the same time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import CancelScope, CapacityLimiter, to_thread

from shared.errors import MensError
from shared.sandbox.client import Sandbox
from shared.sandbox.levels import Choice, SandboxReport
from shared.sandbox.probe import report_of_machine

# The memory of this machine is divided by it.
RUNS_AT_ONCE = 4
RUNS_OF_A_TENANT = 1
"""Largest number of concurrent runs of one tenant. Its further runs wait, and do not delay other tenants' runs as long
as a place is free.
"""
KEPT = 2
"""Sandboxes kept for the next run: a start takes a tenth of a second."""


class GraderSandboxes:
    """Lends sandboxes; each is a child process that holds no key.

    Args:
        choice: ``MENS_SANDBOX``.
    """

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._idle: list[Sandbox] = []
        self._lent: set[Sandbox] = set()
        self._all = CapacityLimiter(RUNS_AT_ONCE)
        self._of_tenant: defaultdict[str, CapacityLimiter] = defaultdict(lambda: CapacityLimiter(RUNS_OF_A_TENANT))

    def report(self) -> SandboxReport:
        """Return the report on this machine's sandbox; the first call blocks for about a second."""
        return report_of_machine(self._choice)

    @asynccontextmanager
    async def lend(self, tenant: str) -> AsyncIterator[Sandbox]:
        """Lend a sandbox for one run of a tenant, when it is its turn."""
        # The tenant's turn first: a caller that waits for its own tenant must not hold a sandbox that others could
        # use.
        async with self._of_tenant[tenant], self._all:
            sandbox = self._idle.pop() if self._idle else await to_thread.run_sync(self._open)
            self._lent.add(sandbox)
            try:
                yield sandbox
            except MensError:
                await self._take_back(sandbox)
                raise
            except BaseException:
                # A cancelled caller may have left code running in it, so it is closed, and never lent again.
                self._lent.discard(sandbox)
                # Shielded, because this task is being cancelled, and the processes of the sandbox would otherwise
                # stay.
                with CancelScope(shield=True):
                    await to_thread.run_sync(sandbox.close)
                raise
            await self._take_back(sandbox)

    def _open(self) -> Sandbox:
        return Sandbox.open(self.report(), parallel=1, share=RUNS_AT_ONCE)

    async def _take_back(self, sandbox: Sandbox) -> None:
        self._lent.discard(sandbox)
        sandbox.forget()
        if len(self._idle) < KEPT:
            self._idle.append(sandbox)
        else:
            await to_thread.run_sync(sandbox.close)

    async def close(self) -> None:
        """End every sandbox, including those at work."""
        for sandbox in [*self._idle, *self._lent]:
            await to_thread.run_sync(sandbox.close)
        self._idle.clear()
