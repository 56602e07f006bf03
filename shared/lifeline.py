"""No orphans: a process that ends when the one that started it ends, even by kill -9. Linux only; elsewhere a no-op."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, signal_number: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to send this process a signal when its parent dies.

    Args:
        parent: pid of the process that started this one. If it has died before this call, this process ends at once.
        signal_number: what is sent.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent:
        os._exit(1)
