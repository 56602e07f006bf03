"""An installation as on several machines: each process has its own folder, and they share a bucket, PostgreSQL and
Valkey.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from cli.client.connection import Connection
from cli.standalone.ports import free_port
from shared.database.callers.keys import Keys
from shared.database.connection import Database
from tests.support.processes import stop_at_exit
from tests.support.waiting import eventually
from tests.system.loop import BASE, ROOT

CELERY = ("celery", "-A", "worker.app", "worker", "--without-mingle", "--without-gossip", "--loglevel", "INFO")
MODULES = {
    "api": ("api",),
    "serving": ("serving",),
    "control": (*CELERY, "--queues", "mens.control", "--concurrency", "3", "--beat", "--hostname", "control@%h"),
}
READY_SECONDS = 240.0


@dataclass
class Machine:
    """A folder and the process that runs on it."""

    home: Path
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """Switch the machine off: the process and its children end at once, and nothing is reported."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def log(self) -> str:
        return (self.home / "log").read_text(errors="replace")


@dataclass
class SeparateMachines:
    """Machines with copies of the base model; what they have in common is in the environment that is given.

    Attributes:
        folder: below which each has its own.
        base_home: with a catalogue and its base, which each gets a copy of.
        environment: addresses and credentials of the services.
    """

    folder: Path
    base_home: Path
    environment: dict[str, str]
    machines: dict[str, Machine] = field(default_factory=dict)
    connection: Connection = field(init=False)

    def __post_init__(self) -> None:
        ports = {name: free_port() for name in ("api", "serving")}
        database = Database(self.environment["MENS_DATABASE_URL"])
        key = Keys(database).create("test")[1]
        database.close()
        self.connection = Connection(f"http://127.0.0.1:{ports['api']}", key)
        self.environment |= {
            "MENS_API_PORT": str(ports["api"]),
            "MENS_API_URL": self.connection.url,
            "MENS_SERVING_PORT": str(ports["serving"]),
            "MENS_SERVING_URLS": f"http://127.0.0.1:{ports['serving']}",
            "MENS_SERVING_KEY": "key of the replicas",
            "MENS_SERVING_BASE": BASE,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "MENS_TRAINER_THREADS": "1",
        }

    def start(self, name: str) -> Machine:
        """Start a machine, on its folder if it has one; one whose name is not in ``MODULES`` is a worker."""
        home = self.folder / name
        if not home.exists():
            home.mkdir()
            shutil.copytree(self.base_home / "bases", home / "bases")
            shutil.copy(self.base_home / "catalog.json", home / "catalog.json")
        module = MODULES.get(name) or (*CELERY, "--queues", "mens.jobs", "--hostname", f"{name}@%h")
        schedule = ("--schedule", str(home / "schedule")) if name == "control" else ()
        with (home / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *module, *schedule],
                cwd=home,
                env={**os.environ, **self.environment, "MENS_HOME": str(home)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        stop_at_exit(process)
        self.machines[name] = Machine(home, process)
        return self.machines[name]

    def restart(self, name: str) -> None:
        """Kill a machine, and start it again on its folder at once, as what supervises it would."""
        self.machines[name].kill()
        self.start(name)

    def wait_until_ready(self) -> None:
        for url in (f"{self.connection.url}/ready", f"{self.environment['MENS_SERVING_URLS']}/health"):
            eventually(lambda url=url: self._responds(url), READY_SECONDS, f"{url} responds")

    def stop(self) -> None:
        for machine in self.machines.values():
            if machine.process.poll() is None:
                machine.kill()

    def _responds(self, url: str) -> bool:
        for name, machine in self.machines.items():
            assert machine.process.poll() is None, f"{name} has ended:\n{machine.log()[-4000:]}"
        try:
            return httpx.get(url, timeout=10, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False


@contextmanager
def running_machines(machines: SeparateMachines, *names: str) -> Iterator[SeparateMachines]:
    """The named ones run and are ready inside the block, and every one is gone after it."""
    try:
        for name in names:
            machines.start(name)
        machines.wait_until_ready()
        yield machines
    finally:
        machines.stop()
