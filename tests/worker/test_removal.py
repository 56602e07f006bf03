"""The round that carries deletions out, against stand-ins for serving replicas and a real database and storage."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

import worker.removal
from shared.db import Database
from shared.deletion import Deletions
from shared.lease import LeaseLedger
from shared.ledger import Ledger
from shared.manifest import MANIFEST_NAME
from shared.registry import Registry
from shared.storage import Storage
from shared.tenancy import SHARED
from tests.shared.samples import claimed, new_adapter
from worker.removal import Removal
from worker.settings import WorkerSettings

KEY = "serving-key"
UNLOADED, DRAINING = (200, {"state": "unloaded"}), (202, {"state": "draining"})


@dataclass
class Replica:
    """What the stand-in says, one answer after the other (the last for ever), and what it was asked."""

    answers: list[tuple[int, dict[str, Any]]]
    storage: Storage
    url: str = ""
    seen: list[tuple[str, str, dict[str, list[str]], str | None]] = field(default_factory=list)
    published: list[bool] = field(default_factory=list)

    def answer(self, method: str, target: str, key: str | None) -> tuple[int, dict[str, Any]]:
        parts = urlsplit(target)
        self.seen.append((method, parts.path, parse_qs(parts.query), key))
        digest = unquote(parts.path).partition("@")[2]
        self.published.append(self.storage.holds("adapters", digest, MANIFEST_NAME))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def handler(replica: Replica) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_DELETE(self) -> None:
            status, value = replica.answer(self.command, self.path, self.headers.get("Authorization"))
            raw = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@dataclass
class Place:
    """An installation whose replicas are stand-ins."""

    settings: WorkerSettings
    database: Database
    storage: Storage
    replicas: list[Replica]
    tenant: str = SHARED

    @property
    def removal(self) -> Removal:
        urls = [replica.url for replica in self.replicas]
        return Removal(self.settings.model_copy(update={"serving_urls": urls}), Deletions(self.database), self.storage)

    def make(self, letter: str = "a", tenant: str = SHARED) -> str:
        """A published adapter; its id."""
        digest = letter * 64
        folder = self.storage.root / "made"
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("weights", MANIFEST_NAME):
            (folder / name).write_text(letter)
        ledger, leases = Ledger(self.database, tenant), LeaseLedger(self.database, 60)
        lease = claimed(ledger, leases)
        self.storage.put_folder("adapters", digest, folder, ["weights"], MANIFEST_NAME)
        leases.finish(lease, {}, adapters=[new_adapter(f"demo@{digest}", digest=digest)])
        return f"demo@{digest}"

    def delete(self, adapter_id: str, tenant: str = SHARED) -> None:
        Deletions(self.database, tenant).begin(adapter_id)

    def state(self, adapter_id: str) -> str:
        return Registry(self.database).adapter(adapter_id, deleted=True).state

    def files(self, letter: str = "a") -> list[str]:
        folder = self.storage.folder("adapters", letter * 64)
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


@pytest.fixture
def place(database: Database, tmp_path: Path) -> Iterator[Callable[..., Place]]:
    """Makes an installation with a stand-in for each list of answers."""
    servers = []
    storage = Storage(tmp_path / "storage")

    def make(*answers: list[tuple[int, dict[str, Any]]], **settings: Any) -> Place:
        replicas = [Replica(list(given), storage) for given in answers]
        for replica in replicas:
            server = ThreadingHTTPServer(("127.0.0.1", 0), handler(replica))
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
            servers.append(server)
            replica.url = f"http://127.0.0.1:{server.server_address[1]}"
        return Place(WorkerSettings(home=tmp_path, serving_key=KEY, **settings), database, storage, replicas)

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def test_withdrawn_then_unloaded_everywhere_then_removed(place) -> None:
    at = place([UNLOADED], [UNLOADED], drain_seconds=7)
    adapter_id = at.make()
    at.delete(adapter_id)
    assert at.removal.round() == [adapter_id]
    assert (at.state(adapter_id), at.files()) == ("deleted", [])
    path = f"/mens/adapters/demo%40{'a' * 64}"
    for replica in at.replicas:
        assert replica.seen == [("DELETE", path, {"drain_seconds": ["7.0"]}, f"Bearer {KEY}")]
        assert replica.published == [False]
    assert list((at.storage.root / "incoming").iterdir()) == []
    assert at.removal.round() == []


def test_files_stay_until_the_last_replica_confirmed(place) -> None:
    at = place([UNLOADED], [DRAINING, DRAINING, UNLOADED])
    adapter_id = at.make()
    at.delete(adapter_id)
    for _ in range(2):
        assert at.removal.round() == []
        assert (at.state(adapter_id), at.files()) == ("deleting", ["weights"])
    assert at.removal.round() == [adapter_id]


@pytest.mark.parametrize(
    "answer",
    [(409, {"error": {"code": "ADAPTER_STILL_STORED"}}), (500, {}), (404, {}), (401, {})],
    ids=["still stored", "broken", "older release", "other key"],
)
def test_a_replica_that_cannot_is_asked_again(place, answer) -> None:
    at = place([answer, UNLOADED])
    adapter_id = at.make()
    at.delete(adapter_id)
    assert at.removal.round() == []
    assert at.files() == ["weights"]
    assert at.removal.round() == [adapter_id]


def test_a_replica_that_is_away_is_waited_for_as_long_as_the_patience_lasts(place, monkeypatch, caplog) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        at = place([UNLOADED], unload_patience_seconds=3600)
        away = Replica([], at.storage, url=f"http://127.0.0.1:{closed.getsockname()[1]}")
        at.replicas.append(away)
        adapter_id = at.make()
        at.delete(adapter_id)
        assert at.removal.round() == []
        assert away.url in caplog.text
        at.settings = at.settings.model_copy(update={"unload_patience_seconds": 0.0})
        assert at.removal.round() == [adapter_id]


def test_one_that_drains_is_waited_for_however_long(place) -> None:
    at = place([DRAINING], unload_patience_seconds=0)
    adapter_id = at.make()
    at.delete(adapter_id)
    assert at.removal.round() == []
    assert at.files() == ["weights"]


def test_one_that_was_not_asked_in_time_is_waited_for_however_long(place, monkeypatch) -> None:
    monkeypatch.setattr(worker.removal, "ROUND_SECONDS", -1.0)
    at = place([UNLOADED], unload_patience_seconds=0)
    at.delete(at.make())
    assert at.removal.round() == []
    assert at.replicas[0].seen == []


def test_a_replica_that_has_gone_from_the_list_counts_no_more(place) -> None:
    at = place([UNLOADED], [DRAINING])
    adapter_id = at.make()
    at.delete(adapter_id)
    assert at.removal.round() == []
    at.replicas.pop()
    assert at.removal.round() == [adapter_id]


def test_nowhere_to_serve(place) -> None:
    at = place()
    adapter_id = at.make()
    at.delete(adapter_id)
    assert at.removal.round() == [adapter_id]


def test_a_name_without_an_address_says_nothing_of_who_is_there(place) -> None:
    at = place(serving_dns="nobody.invalid:8001")
    adapter_id = at.make()
    at.delete(adapter_id)
    assert at.removal.round() == []
    assert (at.state(adapter_id), at.files()) == ("deleting", ["weights"])
    at.settings = at.settings.model_copy(update={"unload_patience_seconds": 0.0})
    assert at.removal.round() == [adapter_id]


def test_what_another_tenant_has_too_is_left_alone(place) -> None:
    at = place([UNLOADED])
    adapter_id = at.make()
    at.make(tenant="acme")
    at.delete(adapter_id)
    assert at.removal.round() == []
    assert (at.state(adapter_id), at.files()) == ("deleted", [MANIFEST_NAME, "weights"])
    assert at.replicas[0].seen == []
    at.delete(adapter_id, "acme")
    assert at.removal.round() == [adapter_id]
    assert at.files() == []


def test_what_a_job_is_about_to_store_is_left_alone(place, database) -> None:
    at = place([UNLOADED])
    adapter_id = at.make()
    at.delete(adapter_id)
    leases = LeaseLedger(database, 60)
    lease = claimed(Ledger(database), leases)
    leases.keep_adapters(lease, ["a" * 64])
    assert at.removal.round() == []
    assert (at.files(), at.replicas[0].seen) == ([MANIFEST_NAME, "weights"], [])
    leases.finish(lease, {}, adapters=[new_adapter(adapter_id, digest="a" * 64)])
    assert at.removal.round() == []
    assert at.state(adapter_id) == "published"


def test_many_at_once_and_one_replica_lost_on_the_way(place) -> None:
    at = place([UNLOADED, DRAINING, UNLOADED])
    made = [at.make(letter) for letter in "abc"]
    for adapter_id in made:
        at.delete(adapter_id)
    assert at.removal.round() == [made[0], made[2]]
    assert at.removal.round() == [made[1]]


STEPS = ["withdraw", "answered", "discard_folder", "free_discarded"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_anywhere_the_next_round_completes_it(place, monkeypatch, step, when) -> None:
    at = place([UNLOADED])
    adapter_id = at.make()
    at.delete(adapter_id)

    class Killed(BaseException):
        pass

    owner, name = (Removal, "_is_unloaded") if step == "answered" else (Storage, step)
    real = getattr(owner, name)

    def dies(*arguments: Any) -> None:
        if when == "after":
            real(*arguments)
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(owner, name, dies)
        at.removal.round()
    at.removal.round()
    at.delete(at.make("b"))
    at.removal.round()  # another deletion frees what was left
    assert (at.state(adapter_id), at.files()) == ("deleted", [])
    assert list((at.storage.root / "incoming").iterdir()) == []


def test_a_storage_that_cannot_be_written_stops_one_and_not_the_others(place, monkeypatch, caplog) -> None:
    at = place([UNLOADED])
    made = [at.make(letter) for letter in "ab"]
    for adapter_id in made:
        at.delete(adapter_id)
    real = Storage.withdraw

    def broken(storage: Storage, kind: Any, digest: str, manifest: str) -> None:
        if digest == "a" * 64:
            raise OSError("read-only")
        real(storage, kind, digest, manifest)

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "withdraw", broken)
        assert at.removal.round() == [made[1]]
    assert "read-only" in caplog.text
    assert at.removal.round() == [made[0]]
