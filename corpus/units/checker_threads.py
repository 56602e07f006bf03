"""Threads that each drive a checker process, which does the work; results are in the order of the items."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Self, TypeVar

from shared.checkers.contained import ContainedCheckers
from shared.datasets.file_parts import ahead

AHEAD = 32
T = TypeVar("T")
U = TypeVar("U")


class CheckerThreads:
    """A context manager that ends the processes when it is left.

    Args:
        processes: number of processes; None: one per processor.
    """

    def __init__(self, processes: int | None = None) -> None:
        self._own = threading.local()
        self._stack = ExitStack()
        # An exit stack is not thread-safe, and the threads enter their checkers at the same time.
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(processes or len(os.sched_getaffinity(0)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._executor.shutdown(cancel_futures=True)
        self._stack.close()

    def map(self, work: Callable[[ContainedCheckers, T], U], items: Iterable[T]) -> Iterator[tuple[T, U]]:
        """Yield each item with its result, in order; a few items are processed ahead."""

        def run(item: T) -> U:
            if not hasattr(self._own, "checkers"):
                with self._lock:
                    self._own.checkers = self._stack.enter_context(ContainedCheckers())
            return work(self._own.checkers, item)

        for item, future in ahead(items, lambda item: self._executor.submit(run, item), AHEAD):
            yield item, future.result()
