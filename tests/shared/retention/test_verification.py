"""All content that rows name is read and compared: exactly the missing and the changed objects are named."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from shared.artifacts.folder_storage import FolderStorage
from shared.artifacts.storage import ArtifactKind
from shared.database.connection import Database
from shared.database.deletions import Deletions
from shared.database.files.files import Files
from shared.database.files.uploads import Uploads
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.records import Kind
from shared.errors import Code, Unavailable
from shared.retention import verification
from shared.retention.references import Reference, references
from shared.retention.verification import Verified, verify_references
from shared.settings import Settings
from tests.support.builders import claimed, new_adapter

MANIFESTS: dict[ArtifactKind, str] = {
    "adapters": "adapter_manifest.json",
    "models": "model_manifest.json",
    "checkpoints": "checkpoint_manifest.json",
}


class Kept:
    """An installation with one of everything that the storage keeps."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder, self.database = folder, database
        self.storage = FolderStorage(folder / "storage")
        self.jobs, self.leases = Jobs(database), Leases(database, 1e9)
        self.digests: dict[str, str] = {}

    def fill(self) -> None:
        self.digests["file"] = self.blob(b"a file")
        Files(self.database).add(filename="f", purpose="fine-tune", size=6, sha256=self.digests["file"])
        self.train("adapter")
        self.digests["merged model"] = self.artifact("models", b"model")
        merge = claimed(self.jobs, self.leases, kind=Kind.MERGE, plan={"adapter_digest": self.digests["adapter"]})
        self.leases.finish(merge, {"model_digest": self.digests["merged model"]})
        self.digests["checkpoint"] = self.artifact("checkpoints", b"checkpoint")
        running = claimed(self.jobs, self.leases)
        self.leases.report(running, progress={"stored_checkpoints": {"step-1": self.digests["checkpoint"]}}, events=[])

    def train(self, content: str, tenant: str = "shared") -> str:
        """A job that has made an adapter; the adapter's id."""
        self.digests[content] = digest = self.artifact("adapters", content.encode())
        lease = claimed(self.jobs.of(tenant), self.leases)
        self.leases.finish(lease, {}, adapters=[new_adapter(f"demo@{digest}", digest=digest)])
        return f"demo@{digest}"

    def blob(self, content: bytes) -> str:
        path = self.folder / "blob"
        path.write_bytes(content)
        return self.storage.put_file(path)

    def artifact(self, kind: ArtifactKind, content: bytes) -> str:
        made = self.folder / "made"
        made.mkdir(exist_ok=True)
        (made / "weights").write_bytes(content)
        manifest = json.dumps({"files": {"weights": hashlib.sha256(content).hexdigest()}}).encode()
        (made / MANIFESTS[kind]).write_bytes(manifest)
        digest = hashlib.sha256(manifest).hexdigest()
        self.storage.put_folder(kind, digest, made, ["weights"], MANIFESTS[kind])
        return digest

    def verify(self) -> list[Verified]:
        return list(verify_references(self.database, self.storage))

    def faults(self) -> dict[str, str]:
        return {item.what: item.error for item in self.verify() if item.error is not None}


@pytest.fixture
def kept(tmp_path: Path, sqlite_template: Path) -> Iterator[Kept]:
    shutil.copy(sqlite_template, tmp_path / "mens.db")
    database = Database(f"sqlite:///{tmp_path}/mens.db")
    kept = Kept(tmp_path, database)
    kept.fill()
    yield kept
    database.close()


def test_one_of_everything_is_verified(tmp_path: Path, database: Database) -> None:
    kept = Kept(tmp_path, database)
    kept.fill()
    assert {item.what: item.digest for item in kept.verify()} == kept.digests
    assert kept.faults() == {}


def change(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


@pytest.mark.parametrize("damage", [change, Path.unlink])
@pytest.mark.parametrize(
    ("what", "kind", "name"),
    [
        ("adapter", "adapters", "weights"),
        ("adapter", "adapters", "adapter_manifest.json"),
        ("merged model", "models", "weights"),
        ("checkpoint", "checkpoints", "weights"),
    ],
)
def test_damaged_file_of_an_artifact_is_named(
    kept: Kept, damage: Callable[[Path], None], what: str, kind: ArtifactKind, name: str
) -> None:
    damage(kept.storage.folder(kind, kept.digests[what]) / name)
    faults = kept.faults()
    assert list(faults) == [what]
    assert name in faults[what]


@pytest.mark.parametrize("damage", [change, Path.unlink])
def test_damaged_blob_is_named(kept: Kept, damage: Callable[[Path], None]) -> None:
    damage(kept.storage.blob_path(kept.digests["file"]))
    faults = kept.faults()
    assert list(faults) == ["file"]
    assert kept.digests["file"] in faults["file"]


def test_part_of_a_pending_upload_is_read(kept: Kept) -> None:
    uploads = Uploads(kept.database)
    upload = uploads.create("f", "fine-tune", 4, timedelta(hours=1))
    part = uploads.add_part(upload.id, 4, hashlib.sha256(b"part").hexdigest())
    assert list(kept.faults()) == ["part of an upload"]
    kept.blob(b"part")
    assert part.id in [item.name for item in kept.verify()]
    assert kept.faults() == {}


def test_content_of_two_tenants_is_read_once_and_named_twice(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.train("adapter", tenant="acme")
    opened: list[str] = []
    read = kept.storage.open_file
    monkeypatch.setattr(kept.storage, "open_file", lambda *names: opened.append(names[1]) or read(*names))
    assert sorted(item.tenant for item in kept.verify() if item.what == "adapter") == ["acme", "shared"]
    assert opened.count(kept.digests["adapter"]) == 1


def test_adapter_that_is_being_deleted_is_left_out(kept: Kept) -> None:
    adapter_id = kept.train("other")
    Deletions(kept.database, "shared").begin(adapter_id)
    assert adapter_id not in [item.name for item in kept.verify()]


def test_what_is_deleted_meanwhile_is_not_a_fault(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.storage.blob_path(kept.digests["file"]).unlink()
    before = references(kept.database)
    answers = [before, [one for one in before if one.what != "file"]]

    def read(_: Database) -> list[Reference]:
        return answers.pop(0)

    monkeypatch.setattr(verification, "references", read)
    assert [item.what for item in kept.verify()] == [one.what for one in before if one.what != "file"]


# -- the command of every tier


@pytest.fixture
def installed(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> Kept:
    monkeypatch.setenv("MENS_HOME", str(kept.folder))
    return kept


def test_command_prints_what_is_damaged(installed: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    assert verification.main() == 0
    assert capsys.readouterr() == ("", "4 verified, 0 missing or changed\n")
    shutil.rmtree(installed.storage.root / "adapters")
    assert verification.main() == 1
    found = capsys.readouterr()
    assert json.loads(found.out)["digest"] == installed.digests["adapter"]
    assert found.err == "3 verified, 1 missing or changed\n"


def test_storage_that_is_away_is_not_called_damaged(
    installed: Kept, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(*_: object) -> None:
        raise Unavailable(Code.STORAGE_UNAVAILABLE, "It is away.")

    monkeypatch.setattr(FolderStorage, "open_blob", away)
    assert verification.main() == 1
    assert capsys.readouterr() == ("", "error: STORAGE_UNAVAILABLE: It is away.\n")


def test_missing_installation_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MENS_HOME", str(tmp_path))
    assert verification.main() == 1
    assert capsys.readouterr().err.startswith(f"error: {Settings().home} does not contain an installation.")
    assert list(tmp_path.iterdir()) == []
