"""Imports the trainer's libraries in two thirds of their usual time. A child program imports this module before
anything else.

A user waits for these imports before the first step, and a short run computes little more. A third of the time goes
into work that no run needs: garbage collections over modules that stay, and torch's compiler, which bitsandbytes loads
to decorate the functions that it uses on devices without kernels of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shared.garbage_collection import without_collections


@contextmanager
def without_compiler() -> Iterator[None]:
    """Make `torch.compile` return functions unchanged inside the block: equal values, without loading the compiler."""
    import torch

    def decorate(function: Callable[..., Any] | None = None, **_: Any) -> Any:
        return function or decorate

    compile_function, torch.compile = torch.compile, decorate  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compile = compile_function


# bitsandbytes warns at its import, into each child's log, that a package is missing which would fetch compiled code; it
# must be missing.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

with without_collections():
    with without_compiler():
        import bitsandbytes  # noqa: F401
    import peft  # noqa: F401
