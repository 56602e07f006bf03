"""The periodic processing of deletions, with fake replicas and a real database and storage."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

import worker.adapter_removal
from shared.artifacts.folder_storage import FolderStorage
from shared.artifacts.manifests import MANIFEST_NAME
from shared.database.adapters import Adapters
from shared.database.connection import Database
from shared.database.deletions import Deletions
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.tenancy import SHARED
from shared.errors import Code, Unavailable
from tests.support.builders import claimed, new_adapter
from tests.support.databases import ON_SQLITE_IN_MAKE_TEST
from tests.support.http_stub import http_stub
from worker.adapter_removal import AdapterRemover
from worker.settings import WorkerSettings

KEY = "serving-key"
UNLOADED = (200, {"id": "demo@a", "state": "unloaded", "requests": 0})
DRAINING = (202, {"id": "demo@a", "state": "draining", "requests": 1})


@dataclass
class UnloadingReplica:
    """Returns its responses one by one, and repeats the last one.

    Attributes:
        seen: method, path, query and key of each request.
        published: whether the storage still had the manifest, by request.
    """

    responses: list[tuple[int, dict[str, Any]]]
    storage: FolderStorage
    url: str = ""
    seen: list[tuple[str, str, dict[str, list[str]], str | None]] = field(default_factory=list)
    published: list[bool] = field(default_factory=list)

    def respond(self, method: str, target: str, _body: bytes, headers: Message) -> tuple[int, dict[str, Any]]:
        parts = urlsplit(target)
        self.seen.append((method, parts.path, parse_qs(parts.query), headers.get("Authorization")))
        digest = unquote(parts.path).partition("@")[2]
        self.published.append(self.storage.holds("adapters", digest, MANIFEST_NAME))
        return self.responses.pop(0) if len(self.responses) > 1 else self.responses[0]


@dataclass
class Installation:
    """A database and a storage with adapters, and fake replicas."""

    settings: WorkerSettings
    database: Database
    storage: FolderStorage
    replicas: list[UnloadingReplica]
    tenant: str = SHARED

    @property
    def remover(self) -> AdapterRemover:
        settings = self.settings.model_copy(update={"serving_urls": [replica.url for replica in self.replicas]})
        return AdapterRemover(settings, Deletions(self.database), self.storage)

    def make(self, letter: str = "a", tenant: str = SHARED) -> str:
        """A published adapter; its id."""
        digest = letter * 64
        folder = self.storage.root / "made"
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("weights", MANIFEST_NAME):
            (folder / name).write_text(letter)
        jobs, leases = Jobs(self.database, tenant), Leases(self.database, 60)
        lease = claimed(jobs, leases)
        self.storage.put_folder("adapters", digest, folder, ["weights"], MANIFEST_NAME)
        leases.finish(lease, {}, adapters=[new_adapter(f"demo@{digest}", digest=digest)])
        return f"demo@{digest}"

    def delete(self, adapter_id: str, tenant: str = SHARED) -> None:
        Deletions(self.database, tenant).begin(adapter_id)

    def state(self, adapter_id: str) -> str:
        return Adapters(self.database).get(adapter_id, deleted=True).state

    def files(self, letter: str = "a") -> list[str]:
        folder = self.storage.folder("adapters", letter * 64)
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


@pytest.fixture
def install(database: Database, tmp_path: Path) -> Iterator[Callable[..., Installation]]:
    """Makes an installation with a replica for each list of responses; keywords are settings."""
    storage = FolderStorage(tmp_path / "storage")
    with ExitStack() as servers:

        def make(*responses: list[tuple[int, dict[str, Any]]], **settings: Any) -> Installation:
            replicas = [UnloadingReplica(list(given), storage) for given in responses]
            for replica in replicas:
                replica.url = servers.enter_context(http_stub(replica.respond))
            return Installation(WorkerSettings(home=tmp_path, serving_key=KEY, **settings), database, storage, replicas)

        yield make


def test_unpublished_then_unloaded_everywhere_then_removed(install) -> None:
    installation = install([UNLOADED], [UNLOADED], drain_seconds=7)
    adapter_id = installation.make()
    installation.delete(adapter_id)
    assert installation.remover.run_round() == [adapter_id]
    assert (installation.state(adapter_id), installation.files()) == ("deleted", [])
    path = f"/mens/adapters/demo%40{'a' * 64}"
    for replica in installation.replicas:
        assert replica.seen == [("DELETE", path, {"drain_seconds": ["7.0"]}, f"Bearer {KEY}")]
        assert replica.published == [False]
    assert list((installation.storage.root / "incoming").iterdir()) == []
    assert installation.remover.run_round() == []


def test_files_stay_until_the_last_replica_confirms(install) -> None:
    installation = install([UNLOADED], [DRAINING, DRAINING, UNLOADED])
    adapter_id = installation.make()
    installation.delete(adapter_id)
    for _ in range(2):
        assert installation.remover.run_round() == []
        assert (installation.state(adapter_id), installation.files()) == ("deleting", ["weights"])
    assert installation.remover.run_round() == [adapter_id]


@pytest.mark.parametrize(
    "response",
    [(409, {"error": {"code": "ADAPTER_STILL_STORED"}}), (500, {}), (404, {}), (401, {})],
    ids=["still stored", "broken", "older release", "other key"],
)
def test_failed_unload_is_repeated(install, response) -> None:
    installation = install([response, UNLOADED])
    adapter_id = installation.make()
    installation.delete(adapter_id)
    assert installation.remover.run_round() == []
    assert installation.files() == ["weights"]
    assert installation.remover.run_round() == [adapter_id]


def test_unreachable_replica_is_waited_for_until_patience_ends(install, caplog) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        installation = install([UNLOADED], unload_patience_seconds=3600)
        unreachable = UnloadingReplica([], installation.storage, url=f"http://127.0.0.1:{closed.getsockname()[1]}")
        installation.replicas.append(unreachable)
        adapter_id = installation.make()
        installation.delete(adapter_id)
        assert installation.remover.run_round() == []
        assert unreachable.url in caplog.text
        installation.settings = installation.settings.model_copy(update={"unload_patience_seconds": 0.0})
        assert installation.remover.run_round() == [adapter_id]


def test_draining_replica_is_waited_for_without_limit(install) -> None:
    installation = install([DRAINING], unload_patience_seconds=0)
    adapter_id = installation.make()
    installation.delete(adapter_id)
    assert installation.remover.run_round() == []
    assert installation.files() == ["weights"]


def test_replica_not_reached_in_the_round_is_waited_for_without_limit(install, monkeypatch) -> None:
    monkeypatch.setattr(worker.adapter_removal, "ROUND_SECONDS", -1.0)
    installation = install([UNLOADED], unload_patience_seconds=0)
    installation.delete(installation.make())
    assert installation.remover.run_round() == []
    assert installation.replicas[0].seen == []


def test_replica_removed_from_the_list_is_ignored(install) -> None:
    installation = install([UNLOADED], [DRAINING])
    adapter_id = installation.make()
    installation.delete(adapter_id)
    assert installation.remover.run_round() == []
    installation.replicas.pop()
    assert installation.remover.run_round() == [adapter_id]


def test_no_replica_configured(install) -> None:
    installation = install()
    adapter_id = installation.make()
    installation.delete(adapter_id)
    assert installation.remover.run_round() == [adapter_id]


def test_dns_name_without_address_delays_until_patience_ends(install) -> None:
    installation = install(serving_dns="nobody.invalid:8001")
    adapter_id = installation.make()
    installation.delete(adapter_id)
    assert installation.remover.run_round() == []
    assert (installation.state(adapter_id), installation.files()) == ("deleting", ["weights"])
    installation.settings = installation.settings.model_copy(update={"unload_patience_seconds": 0.0})
    assert installation.remover.run_round() == [adapter_id]


def test_adapter_of_another_tenant_too_is_kept(install) -> None:
    installation = install([UNLOADED])
    adapter_id = installation.make()
    installation.make(tenant="acme")
    installation.delete(adapter_id)
    assert installation.remover.run_round() == []
    assert (installation.state(adapter_id), installation.files()) == ("deleted", [MANIFEST_NAME, "weights"])
    assert installation.replicas[0].seen == []
    installation.delete(adapter_id, "acme")
    assert installation.remover.run_round() == [adapter_id]
    assert installation.files() == []


def test_adapter_that_a_job_is_about_to_store_is_kept(install, database) -> None:
    installation = install([UNLOADED])
    adapter_id = installation.make()
    installation.delete(adapter_id)
    leases = Leases(database, 60)
    lease = claimed(Jobs(database), leases)
    leases.keep_adapters(lease, ["a" * 64])
    assert installation.remover.run_round() == []
    assert (installation.files(), installation.replicas[0].seen) == ([MANIFEST_NAME, "weights"], [])
    leases.finish(lease, {}, adapters=[new_adapter(adapter_id, digest="a" * 64)])
    assert installation.remover.run_round() == []
    assert installation.state(adapter_id) == "published"


def test_several_deletions_while_one_adapter_drains(install) -> None:
    installation = install([UNLOADED, DRAINING, UNLOADED])
    made = [installation.make(letter) for letter in "abc"]
    for adapter_id in made:
        installation.delete(adapter_id)
    assert installation.remover.run_round() == [made[0], made[2]]
    assert installation.remover.run_round() == [made[1]]


STEPS = ["unpublish", "unloaded", "move_to_trash", "purge_trash"]


@ON_SQLITE_IN_MAKE_TEST
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_round_killed_anywhere_is_completed_by_the_next(install, monkeypatch, step, when) -> None:
    installation = install([UNLOADED])
    adapter_id = installation.make()
    installation.delete(adapter_id)

    class Killed(BaseException):
        pass

    owner, name = (AdapterRemover, "_is_unloaded") if step == "unloaded" else (FolderStorage, step)
    real = getattr(owner, name)

    def dies(*arguments: Any) -> None:
        if when == "after":
            real(*arguments)
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(owner, name, dies)
        installation.remover.run_round()
    installation.remover.run_round()
    installation.delete(installation.make("b"))
    # The round of another deletion purges the trash.
    installation.remover.run_round()
    assert (installation.state(adapter_id), installation.files()) == ("deleted", [])
    assert list((installation.storage.root / "incoming").iterdir()) == []


@pytest.mark.parametrize("fault", [OSError("read-only"), Unavailable(Code.STORAGE_UNAVAILABLE, "away")])
def test_storage_fault_stops_one_deletion_only(install, monkeypatch, caplog, fault) -> None:
    installation = install([UNLOADED])
    made = [installation.make(letter) for letter in "ab"]
    for adapter_id in made:
        installation.delete(adapter_id)
    real = FolderStorage.unpublish

    def broken(storage: FolderStorage, kind: Any, digest: str, manifest: str) -> None:
        if digest == "a" * 64:
            raise fault
        real(storage, kind, digest, manifest)

    with monkeypatch.context() as patched:
        patched.setattr(FolderStorage, "unpublish", broken)
        assert installation.remover.run_round() == [made[1]]
    assert str(fault) in caplog.text
    assert installation.remover.run_round() == [made[0]]
