"""Servers on this machine: where one may listen, and when it answers."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait(url: str, seconds: float, process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until a server answers.

    Args:
        seconds: the longest to wait.
        process: the server's; when it has ended, nobody waits for it.

    Raises:
        OSError: it does not.
    """
    deadline = time.monotonic() + seconds
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with opener.open(url, timeout=2):
                return
        except OSError:
            has_ended = process is not None and process.poll() is not None
            if has_ended or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
