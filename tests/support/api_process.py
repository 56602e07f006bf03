"""``python -m api`` as a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx

from api.settings import ApiSettings
from cli.standalone.ports import free_port
from tests.support.waiting import eventually


@dataclass(frozen=True)
class ApiProcess:
    """A process that serves an installation."""

    url: str
    process: subprocess.Popen[bytes]

    @property
    def cpu_seconds(self) -> float:
        """Processor time that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def peak_memory(self) -> int:
        """Peak memory of the process, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024


def responds(client: httpx.Client) -> bool:
    """Return whether the API behind a client accepts connections."""
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def running_api(settings: ApiSettings, log: IO[bytes] | None = None, **more: str) -> Iterator[ApiProcess]:
    """An API process that is ready; ``more`` are its own settings. Its log goes to a file, if one is given."""
    given = {"home": str(settings.home), "serving_urls": ",".join(settings.serving_urls)}
    given |= {"broker_url": settings.broker_url, "api_port": str(free_port()), **more}
    environment = {f"MENS_{name.upper()}": value for name, value in given.items()}
    url = f"http://127.0.0.1:{given['api_port']}"
    process = subprocess.Popen([sys.executable, "-m", "api"], env={**os.environ, **environment}, stderr=log)
    try:
        with httpx.Client(base_url=url, trust_env=False, timeout=5) as client:
            eventually(lambda: responds(client), 60)
        yield ApiProcess(url, process)
    finally:
        process.kill()
        process.wait(10)
