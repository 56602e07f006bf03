"""The engine's process on a CPU: a fork of the server's process, made as soon as the server has imported vLLM.

By default, vLLM starts a new interpreter for its engine. That interpreter imports the same packages again, which takes
nearly half of a start's processor time and doubles the memory for the packages. The fork is made before the server has
sockets, an event loop or signal handlers, and waits until vLLM starts its engine. It then receives the same inputs as
the new interpreter would, including the environment, and does the same work.

With several threads, PyTorch's OpenMP library has to be loaded before all other libraries. A fork cannot do that, so
the launch preloads it (`serving/openmp.py`). On a GPU, or if the library could not be preloaded, vLLM starts the engine
itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.context import ForkProcess, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any

from serving.openmp import preloads_openmp
from serving.settings import ServingSettings
from shared.host import exit_with_parent


class EngineProcess(ForkProcess):
    """A process that is forked when this object is created, and waits until it is started."""

    def __init__(self) -> None:
        # A daemon, so that a server that exits without starting its engine does not wait for this process.
        super().__init__(name="EngineCore", daemon=True)
        self._receiver, self._sender = Pipe(duplex=False)
        self._task: tuple[Callable[..., object], dict[str, Any]] | None = None
        super().start()
        # Only the child may hold this end: a server that wrote to a dead child would otherwise block instead of
        # failing.
        self._receiver.close()

    def assign(self, target: Callable[..., object], kwargs: dict[str, Any]) -> None:
        """Set the function that the process will call."""
        self._task = target, kwargs

    def start(self) -> None:
        """Let the process call its function, with the environment of the server."""
        self._sender.send((dict(os.environ), self._task))
        self._sender.close()

    def run(self) -> None:
        """Wait for the start, then call the function."""
        exit_with_parent()
        # Otherwise this process itself would keep the pipe open, and a read would not see that the server has ended.
        self._sender.close()
        environment, (target, kwargs) = self._receiver.recv()
        self._receiver.close()
        # Set only changed variables: the library that sets the process title finds the title's memory by the original
        # variables, so these have to stay in place.
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment.items() - os.environ.items())
        target(**kwargs)


class EngineContext(SpawnContext):
    """vLLM's context for starting processes; its first process already exists."""

    def __init__(self, process: EngineProcess) -> None:
        super().__init__()
        self._waiting: EngineProcess | None = process

    def Process(  # type: ignore[override]  # noqa: N802 - the name in multiprocessing
        self, *, target: Callable[..., object], name: str, kwargs: dict[str, Any]
    ) -> BaseProcess:
        """Return the waiting process on the first call, and a process with a new interpreter on later calls."""
        process, self._waiting = self._waiting, None
        if process is None:
            return super().Process(target=target, name=name, kwargs=kwargs)
        process.assign(target, kwargs)
        return process


def fork_engine_process(settings: ServingSettings) -> None:
    """Fork the engine's process now, if possible, and make vLLM use it. The server calls this before anything else."""
    several_threads = (settings.serving_cpu_threads or 1) > 1
    if settings.serving_device != "cpu" or (several_threads and not preloads_openmp(os.environ)):
        return
    from vllm.v1.engine import utils

    context = EngineContext(EngineProcess())
    utils.get_mp_context = lambda: context
