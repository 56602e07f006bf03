"""``mens keys``: whose a key is and what it may do is said when it is made, and shown ever after."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.migrate import migrate
from cli.main import app
from shared.db import Database
from shared.keys import Keys
from shared.settings import Settings
from shared.tenancy import SHARED, Role

runner = CliRunner()


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keys:
    """The keys of a new installation."""
    monkeypatch.setenv("MENS_HOME", str(tmp_path))
    migrate(Settings().database_url)
    return Keys(Database(Settings().database_url))


def test_key_without_flags_runs_the_installation(keys: Keys) -> None:
    secret = runner.invoke(app, ["keys", "create", "alice"]).output.splitlines()[-1]
    key = keys.authenticate(secret)
    assert (key.tenant, key.role, key.requests_per_minute, key.concurrent_requests) == (SHARED, Role.ADMIN, None, None)


def test_key_of_a_tenant(keys: Keys) -> None:
    flags = ["--tenant", "acme", "--role", "viewer", "--rpm", "60", "--concurrent", "4"]
    created = runner.invoke(app, ["keys", "create", "bot", *flags])
    key = keys.authenticate(created.output.splitlines()[-1])
    assert (key.tenant, key.role, key.requests_per_minute, key.concurrent_requests) == ("acme", Role.VIEWER, 60, 4)
    assert "viewer of acme" in created.output
    runner.invoke(app, ["keys", "create", "alice"])
    lines = runner.invoke(app, ["keys", "list"]).output.splitlines()
    assert [line.split("\t")[1:6] for line in lines] == [
        ["bot", "acme", "viewer", "60", "4"],
        ["alice", "shared", "admin", "", ""],
    ]
    assert runner.invoke(app, ["keys", "list", "--tenant", "acme"]).output.splitlines() == lines[:1]


@pytest.mark.parametrize(
    "flags", [["--tenant", "Acme"], ["--tenant", ""], ["--role", "root"], ["--rpm", "0"], ["--concurrent", "-1"]]
)
def test_nonsense_makes_no_key(keys: Keys, flags: list[str]) -> None:
    assert runner.invoke(app, ["keys", "create", "bot", *flags]).exit_code != 0
    assert keys.all() == []


@pytest.mark.parametrize("name", ["", "x" * 65, "two\nlines"])
def test_name_that_is_none(keys: Keys, name: str) -> None:
    created = runner.invoke(app, ["keys", "create", name])
    assert (created.exit_code, "NAME_INVALID" in created.output) == (1, True)
    assert keys.all() == []
