"""Polls of a job's state (goal C5): polls per second, compared with a FastAPI route that returns a constant, and their
latency under load.

    python -m bench.poll [--rounds 5] [--seconds 3] [--upload-mb 2000]

The API runs as ``python -m api``, next to a FastAPI application with one route that returns a constant, on the same
uvicorn with its fastest components and without an access log. The same raw-socket client polls both in turns:
``unchanged`` is a poll with ``If-None-Match`` (an authenticated 304), ``changed`` one without (200, read from the
database). Then polls are sent one by one at a steady rate, while a file is uploaded and another one is validated
repeatedly, and in between without load.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from urllib.parse import urlsplit

from bench.gateway import percentile
from bench.harness.command import BenchFailed, bench_parser, parse_options, print_goal, run_bench
from bench.harness.peers import require
from bench.serving.poll_variants import PolledInstallation, busy_installation, constant_server

MIN_RATIO, MAX_P99_RATIO = 2.0, 3.0
MAX_P99_MS = 10.0
"""Limit of the 99th percentile: a tenth of a noticeable delay. A ratio would also grow if polls without load became
faster.
"""
STEADY_SECONDS = 0.005
"""Seconds between two polls of the steady rate."""
SMOKE = {"rounds": 1, "seconds": 0.2, "upload_mb": 2, "steady_seconds": 0.3, "rows": 40}


class Poller:
    """Sends one request repeatedly over kept-alive connections.

    Args:
        url: URL of the server.
        path: path of the request.
        headers: headers of the request.
        status: status that every answer must have.
    """

    def __init__(self, url: str, path: str, headers: dict[str, str], status: int) -> None:
        address = urlsplit(url)
        self._address, self._status = (address.hostname, address.port), b" %d " % status
        lines = [f"GET {path} HTTP/1.1", "host: x", *(f"{name}: {value}" for name, value in headers.items())]
        self._request = ("\r\n".join(lines) + "\r\n\r\n").encode()

    def per_second(self, seconds: float, connections: int) -> float:
        """Return the highest rate of answers per second over `connections` connections; the client only sends requests
        and counts the ends of response headers.

        Raises:
            BenchFailed: an answer has another status.
        """
        count, started = 0, time.perf_counter()
        with ExitStack() as stack:
            opened = [stack.enter_context(socket.create_connection(self._address)) for _ in range(connections)]
            while (elapsed := time.perf_counter() - started) < seconds:
                for connection in opened:
                    connection.sendall(self._request)
                for connection in opened:
                    self._receive(connection)
                count += connections
        return count / elapsed

    def _receive(self, connection: socket.socket) -> None:
        answer = connection.recv(65_536)
        while b"\r\n\r\n" not in answer:
            answer += connection.recv(65_536)
        head, _, body = answer.partition(b"\r\n\r\n")
        if self._status not in head[:16]:
            raise BenchFailed(answer.decode(errors="replace"))
        _, length_header, rest = head.partition(b"content-length: ")
        missing = int(rest.partition(b"\r")[0]) - len(body) if length_header else 0
        while missing > 0:
            missing -= len(connection.recv(65_536))

    def latencies(self, seconds: float, load: Future[int] | None = None) -> list[float]:
        """Return the milliseconds of each answer to requests at a steady rate, for some seconds or until a load has
        ended.
        """
        milliseconds, end = [], time.perf_counter() + seconds
        with socket.create_connection(self._address) as connection:
            while time.perf_counter() < end or (load and not load.done()):
                started = time.perf_counter()
                connection.sendall(self._request)
                self._receive(connection)
                milliseconds.append((time.perf_counter() - started) * 1000)
                time.sleep(STEADY_SECONDS)
        return milliseconds


def measure_speeds(pollers: dict[str, Poller], options: argparse.Namespace) -> bool:
    """Measure answers per second of all variants in turns, print the table and the goal; return whether it is met."""
    speeds: dict[str, list[float]] = {name: [] for name in pollers}
    for number in range(options.rounds):
        for name in list(pollers)[:: 1 if number % 2 else -1]:
            speeds[name].append(pollers[name].per_second(options.seconds, options.connections))
    print(f"{'variant':<12}{'polls/s':>10}{'lowest':>10}{'highest':>10}   load {os.getloadavg()[0]:.1f}")
    for name, values in speeds.items():
        print(f"{name:<12}{statistics.median(values):>10.0f}{min(values):>10.0f}{max(values):>10.0f}")
    ratio, changed = (
        statistics.median(mine / peer for mine, peer in zip(speeds[name], speeds["constant"], strict=True))
        for name in ("unchanged", "changed")
    )
    facts = {"ratio": round(ratio, 2), "changed_ratio": round(changed, 2)}
    return print_goal("C5", **facts, target=MIN_RATIO, met=ratio >= MIN_RATIO, smoke=options.smoke)


def measure_load(installation: PolledInstallation, options: argparse.Namespace) -> bool:
    """Measure the 99th percentile of the latency of polls, alone and during an upload and validations; return whether the
    goals are met.
    """
    quiet: list[float] = []
    busy: list[float] = []
    validations = 0
    poller = Poller(installation.url, installation.job_path, installation.poll_headers, 304)
    # The load runs in another process: delays of a poll in this one would count as the server's.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(int).result()
        for _ in range(options.load_rounds):
            quiet += poller.latencies(options.steady_seconds)
            load = pool.submit(installation.upload_and_validate, options.upload_mb << 20)
            busy += poller.latencies(options.steady_seconds, load)
            validations += load.result()
    print(f"\n{'poll ms':<12}{'p50':>10}{'p99':>10}{'polls':>10}")
    for name, values in (("quiet", quiet), ("busy", busy)):
        print(f"{name:<12}{percentile(values, 50):>10.2f}{percentile(values, 99):>10.2f}{len(values):>10}")
    ratio = percentile(busy, 99) / percentile(quiet, 99)
    facts = {"ratio": round(ratio, 2), "validations": validations, "upload_mb": options.upload_mb}
    p99 = percentile(busy, 99)
    in_time = print_goal("C5-load-ms", p99=round(p99, 2), target=MAX_P99_MS, met=p99 <= MAX_P99_MS, smoke=options.smoke)
    is_even = print_goal("C5-load", **facts, target=MAX_P99_RATIO, met=ratio <= MAX_P99_RATIO, smoke=options.smoke)
    return in_time and is_even


def measure_all(installation: PolledInstallation, constant_url: str, options: argparse.Namespace) -> bool:
    """Make both measurements; return whether both goals are met."""
    authorization = {"authorization": installation.poll_headers["authorization"]}
    pollers = {
        "unchanged": Poller(installation.url, installation.job_path, installation.poll_headers, 304),
        "changed": Poller(installation.url, installation.job_path, authorization, 200),
        "constant": Poller(constant_url, "/constant", {}, 200),
    }
    for poller in pollers.values():
        poller.per_second(min(1.0, options.seconds), 1)  # warm-up
    is_fast = measure_speeds(pollers, options)
    return measure_load(installation, options) and is_fast


@contextmanager
def servers(options: argparse.Namespace) -> Iterator[tuple[PolledInstallation, str]]:
    """Yield the API with a running job and files, and the constant's URL."""
    with (
        tempfile.TemporaryDirectory() as folder,
        busy_installation(Path(folder), options.rows, smoke=options.smoke) as installation,
        constant_server() as url,
    ):
        yield installation, url


def measure(options: argparse.Namespace) -> bool:
    """Start everything and measure; return whether the goals are met."""
    require("uvicorn", "fastapi", "httptools")
    with servers(options) as (installation, url):
        return measure_all(installation, url, options)


def main() -> int:
    """Entry point."""
    parser = bench_parser("bench.poll", __doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds per variant and round")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--load-rounds", type=int, default=2, help="uploads")
    parser.add_argument("--upload-mb", type=int, default=2000)
    parser.add_argument(
        "--steady-seconds", type=float, default=5.0, help="seconds of steady polling without load, per round"
    )
    parser.add_argument("--rows", type=int, default=20_000, help="rows of the file that is validated")
    options = parse_options(parser, SMOKE)
    return run_bench(lambda: measure(options))


if __name__ == "__main__":
    sys.exit(main())
