"""No orphans: an engine process ends with the server process that started it.

vLLM runs its engine in a child process. When the server is killed outright (kill -9, the kernel out of memory), that
child goes on for good, and so does its hold on the GPU's memory, so that the next start finds none.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends; only in a child of `multiprocessing`, only on Linux."""
    parent = multiprocessing.parent_process()
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if not parent.is_alive():  # it ended before the kernel was asked
        os._exit(1)
