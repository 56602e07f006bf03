"""A real vLLM server, started as users start it: ``python -m serving``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil

from cli.standalone.ports import free_port
from tests.support.processes import stop_at_exit, wait_until_healthy
from tests.support.serving_installation import KEY, METRICS_KEY, ServingInstallation


@dataclass
class VllmServer:
    """A running replica.

    Attributes:
        url: its base URL.
        log: the file with its output.
        start_seconds: how long it took to become healthy.
        pid: process id of the server, which is also its process group.
    """

    url: str
    log: Path
    start_seconds: float
    pid: int

    def client(self, key: str | None = KEY) -> httpx.Client:
        """A client that sends the key, unless it is None."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    def metrics(self) -> str:
        """The metrics page, as a scraper gets it."""
        headers = {"Authorization": f"Bearer {METRICS_KEY}"}
        return httpx.get(f"{self.url}/metrics", headers=headers, timeout=60, trust_env=False).text

    def clients(self) -> set[int]:
        """Ports from which clients have connected to the HTTP server."""
        port, found = urlsplit(self.url).port, psutil.Process(self.pid).net_connections("tcp")
        return {each.raddr.port for each in found if each.status == psutil.CONN_ESTABLISHED and each.laddr.port == port}

    @contextmanager
    def stopped_engine(self) -> Iterator[None]:
        """Stop the engine's processes, and with them every request, while the block runs; the HTTP server continues."""
        processes = psutil.Process(self.pid).children(recursive=True)
        for process in processes:
            process.suspend()
        try:
            yield
        finally:
            for process in processes:
                process.resume()


@contextmanager
def start_server(installation: ServingInstallation, **settings: object) -> Iterator[VllmServer]:
    """`python -m serving` on a free port, in a separate session, so that none of its processes outlives the tests."""
    port = free_port()
    log = installation.home / f"vllm-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "serving"],
            # No machine that serves needs a compiler.
            env={**os.environ, "CXX": "/no/compiler", **installation.environment(serving_port=port, **settings)},
            cwd=installation.home,  # not the checkout: the installed package must be enough
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    stop = stop_at_exit(process)
    try:
        yield VllmServer(f"http://127.0.0.1:{port}", log, wait_until_healthy(process, port, log), process.pid)
    finally:
        stop()
