"""No orphans: an engine process ends with the server process that started it.

vLLM runs its engine in a child process. When the server is killed outright (kill -9, the kernel out of memory), that
child goes on for good, and so does its hold on the GPU's memory, so that the next start finds none.
"""

from __future__ import annotations

import multiprocessing

from shared.lifeline import die_with_parent


def die_with_server() -> None:
    """End with the server; only in a child of `multiprocessing`."""
    if server := multiprocessing.parent_process():  # not the parent of this moment: the server may have died already
        assert server.pid is not None
        die_with_parent(server.pid)
