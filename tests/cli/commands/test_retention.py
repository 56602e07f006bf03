"""``mens retention`` lists what the policy would remove, and removes it with --apply; the worker's own command does the
same.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.settings import Settings
from tests.support.builders import claimed
from worker import retention as worker_retention

runner = CliRunner()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_template: Path) -> Path:
    """The run folder of a finished job of a new installation, which keeps none."""
    monkeypatch.setenv("MENS_HOME", str(tmp_path))
    monkeypatch.setenv("MENS_RETAIN_RUN_DAYS", "0")
    shutil.copy(sqlite_template, tmp_path / "mens.db")
    database = Database(Settings().database_url)
    leases = Leases(database, 60)
    lease = claimed(Jobs(database), leases)
    leases.finish(lease, {})
    folder = tmp_path / "runs" / lease.job.id
    folder.mkdir(parents=True)
    (folder / "engine.log").write_bytes(b"x" * 1500)
    return folder


def test_without_apply_it_only_lists(run: Path) -> None:
    result = runner.invoke(app, ["retention"])
    assert result.exit_code == 0
    *rows, last = result.stdout.splitlines()
    assert [row.split("\t") for row in rows] == [
        ["run folder", run.name, "", "1.5 KB", "its job has been over for 0.0 days"]
    ]
    assert last == "1 to remove, 1.5 KB; --apply removes them"
    assert result.stderr.split() == [
        "MENS_RETAIN_FAILED_CHECKPOINT_DAYS=30.0",
        "MENS_RETAIN_ALIAS_MOVES=10",
        "MENS_RETAIN_RUN_DAYS=0.0",
    ]
    assert run.is_dir()


def test_apply_removes_what_is_listed(run: Path) -> None:
    result = runner.invoke(app, ["retention", "--apply"])
    assert result.stdout.splitlines()[-1] == "1 removed, 1.5 KB"
    assert not run.exists()
    assert runner.invoke(app, ["retention"]).stdout.splitlines() == ["0 to remove, 0 bytes; --apply removes them"]


def test_nothing_is_removed_without_a_rule(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MENS_RETAIN_RUN_DAYS")
    monkeypatch.setenv("MENS_RETAIN_ALIAS_MOVES", "3")
    result = runner.invoke(app, ["retention", "--apply"])
    assert (result.exit_code, result.stdout) == (0, "0 removed, 0 bytes\n")
    assert result.stderr == "MENS_RETAIN_FAILED_CHECKPOINT_DAYS=30.0 MENS_RETAIN_ALIAS_MOVES=3\n"
    assert run.is_dir()
    assert worker_retention.main([]) == 0
    assert capsys.readouterr() == ("", "")


def test_missing_installation_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MENS_HOME", str(tmp_path))
    result = runner.invoke(app, ["retention", "--apply"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: INSTALLATION_NOT_FOUND: ")
    assert f"{tmp_path} contains no installation. Set MENS_HOME" in result.stderr
    assert worker_retention.main([]) == 1
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} does not contain an installation. Set MENS_HOME")
    assert list(tmp_path.iterdir()) == [], "no empty database is left behind"


def test_unreachable_database_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_DATABASE_URL", "postgresql+psycopg://nobody@127.0.0.1:9/none")
    monkeypatch.setenv("MENS_RETAIN_CHECKPOINTS", "1")
    result = runner.invoke(app, ["retention"])
    assert (result.exit_code, "DATABASE_UNAVAILABLE" in result.stderr) == (1, True)
    assert worker_retention.main([]) == 1


def test_command_of_the_worker_tier(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, there in (([], True), (["--apply"], False)):
        assert worker_retention.main(arguments) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert (json.loads(line)["name"], run.exists()) == (run.name, there)
