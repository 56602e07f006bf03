"""`mens plan` uses the speed that jobs of this machine's installation had, as the API does for `mens train`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from api.migrate import migrate
from cli.main import app
from shared.base_models.catalog import BaseModelEntry, Catalog, LocalSource, digest_model_folder, save_catalog
from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.settings import Settings
from tests.support.builders import claimed
from tests.support.tiny_base import write_base


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose catalogue has the base `tiny`, without a database."""
    monkeypatch.setenv("MENS_HOME", str(tmp_path / "home"))
    base = write_base(tmp_path / "folder")
    entry = BaseModelEntry(name="tiny", source=LocalSource(path=str(base)), digests=digest_model_folder(base))
    save_catalog(tmp_path / "home" / "catalog.json", Catalog(bases=[entry]))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "response": "b"}\n' * 40)
    return tmp_path / "home"


def time_of(home: Path, *options: str, model: str = "tiny") -> dict[str, Any]:
    """The time that a plan of the base estimates."""
    rows = str(home.parent / "rows.jsonl")
    shown = CliRunner().invoke(app, ["plan", rows, "--model", model, "--json", *options])
    assert shown.exit_code == 0, shown.output
    time: dict[str, Any] = json.loads(shown.stdout)["estimate"]["time"]
    return time


def measure(home: Path, rate: float) -> str:
    """Write a job of the base that ended at this rate into the home's database; returns its id."""
    url = Settings(home=home).database_url
    migrate(url)
    database = Database(url)
    lease = claimed(Jobs(database), leases := Leases(database, 60))
    leases.finish(lease, {"tokens_per_second": rate, "trained_tokens": 1})
    database.close()
    return lease.job.id


def test_a_plan_uses_the_rate_of_the_homes_last_job(home: Path) -> None:
    assert time_of(home)["basis"] == "flops"
    job = measure(home, 1000.0)
    measured = time_of(home)
    assert (measured["basis"], job in measured["reason"]) == ("measured", True)
    assert 0 <= measured["other_seconds"] < 60
    assert time_of(home, model=str(home.parent / "folder")) == measured


def test_a_rate_is_not_that_of_another_machine_or_base(home: Path) -> None:
    measure(home, 1000.0)
    assert time_of(home, "--device", "cpu")["basis"] == "flops"
    other = write_base(home.parent / "tiny")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config, indent=1))
    assert time_of(home, model=str(other))["basis"] == "flops"


def test_a_database_that_cannot_be_read_is_a_note(home: Path) -> None:
    (home / "mens.db").write_bytes(b"")
    shown = CliRunner().invoke(app, ["plan", str(home.parent / "rows.jsonl"), "--model", "tiny"])
    assert shown.exit_code == 0, shown.output
    assert "whether a job of tiny was measured is not known" in shown.output
