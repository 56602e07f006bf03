"""An API and its replicas as processes of a test, which can be killed, paused and restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from api.migrate import migrate
from cli.standalone.ports import free_port
from shared.artifacts.folder_storage import FolderStorage
from shared.base_models.catalog import BaseModelEntry, Catalog, LocalSource, digest_model_folder, save_catalog
from shared.database.adapters import NewAdapter
from shared.database.callers.keys import Keys
from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.records import Kind, Submission
from shared.settings import Settings
from tests.support.processes import stop_at_exit, wait_until_healthy
from tests.support.serving_installation import KEY, ServingInstallation, save_adapter


class Program:
    """A process group of the installation; a new one has the settings of the one that was killed."""

    def __init__(self, installation: ServingInstallation, module: str, **settings: object) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        setting = "serving_port" if module == "serving" else "api_port"
        self._environment = {**os.environ, **installation.environment(**{setting: self.port}, **settings)}
        self._module, self._log = module, installation.home / f"{module}-{self.port}.log"
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.stop = stop_at_exit(self._process)

    def wait(self) -> None:
        """Until it answers."""
        wait_until_healthy(self._process, self.port, self._log)

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)

    def terminate(self) -> None:
        """Tell it, and none of its children, to stop: what a supervisor does first."""
        self._process.terminate()

    def wait_for_end(self, seconds: float) -> None:
        """Until it has ended."""
        self._process.wait(seconds)

    def pause(self) -> None:
        """It keeps its connections, takes new ones, and answers none."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)


@dataclass
class Tier:
    """An API process and its replicas."""

    api: Program
    replicas: list[Program]
    key: str

    def client(self) -> httpx.Client:
        """A client of the API, with a key."""
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self.api.url, headers=headers, timeout=60, trust_env=False)

    def wait_for(self, replica: Program, state: str, seconds: float) -> None:
        """Until the API says this of a replica."""
        deadline = time.monotonic() + seconds
        with self.client() as client:
            while (seen := _states(client))[replica.url] != state:
                assert time.monotonic() < deadline, seen
                time.sleep(0.1)


def _states(client: httpx.Client) -> dict[str, str]:
    return {replica["url"]: replica["state"] for replica in client.get("/v1/replicas").json()["data"]}


def loaded(replica: Program) -> set[str]:
    """Ids of the models that a replica was asked for since its start, its base included."""
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=replica.url, headers=headers, timeout=30, trust_env=False) as client:
        return {model["id"] for model in client.get("/v1/models").json()["data"]}


def make_installation(base: Path) -> ServingInstallation:
    """An installation's folder around a base model's."""
    home = base.parent / "home"
    source = LocalSource(path=str(base))
    entry = BaseModelEntry(name="tiny-base", source=source, digests=digest_model_folder(base))
    save_catalog(home / "catalog.json", Catalog(bases=[entry]))
    return ServingInstallation(home, base, entry, FolderStorage(home / "storage"), save_adapter)


class Publisher:
    """Finishes jobs as a worker does: in a separate process, without a message to the API."""

    def __init__(self, installation: ServingInstallation) -> None:
        url = Settings(home=installation.home).database_url
        migrate(url)
        self._base = installation.entry.name
        self._database = Database(url)
        self._leases = Leases(self._database, 60)

    def create_key(self) -> str:
        """The secret of a new key."""
        return Keys(self._database).create("test")[1]

    def publish(self, models: list[str], alias: str) -> list[str]:
        """One job's adapters, the last of them its result, to which the alias moves; where the alias points then."""
        submission = Submission(kind=Kind.FINETUNE, base_model=self._base, name=alias, contract={}, plan={})
        lease = self._leases.claim(Jobs(self._database).submit(submission)[0].id, "test")
        assert lease
        adapters = [self._adapter(model, step, final=model == models[-1]) for step, model in enumerate(models)]
        self._leases.finish(lease, {}, adapters=adapters, alias=alias)
        return models[-1:]

    def _adapter(self, model: str, step: int, *, final: bool) -> NewAdapter:
        digest = model.partition("@")[2]
        return NewAdapter(
            id=model, digest=digest, base_model=self._base, step=step, final=final, published=True, manifest={}
        )

    def close(self) -> None:
        self._database.close()
