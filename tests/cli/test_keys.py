"""``mens keys``: whose a key is and what it may do is said when it is made, and shown ever after; limits can change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from shared.db import Database
from shared.keys import Keys
from shared.settings import Settings
from shared.tenancy import SHARED, KeyLimits, Role

runner = CliRunner()


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_template: Path) -> Keys:
    """The keys of a new installation."""
    monkeypatch.setenv("MENS_HOME", str(tmp_path))
    shutil.copy(sqlite_template, tmp_path / "mens.db")
    return Keys(Database(Settings().database_url))


def test_key_without_flags_runs_the_installation(keys: Keys) -> None:
    created = runner.invoke(app, ["keys", "create", "alice"])
    key = keys.authenticate(created.stdout.strip())
    [told] = created.stderr.splitlines()
    assert told.startswith(f"{key.id} for alice, admin of shared, the operator: may do everything in every tenant;")
    assert (key.tenant, key.role, key.requests_per_minute, key.concurrent_requests) == (SHARED, Role.ADMIN, None, None)


def test_key_of_a_tenant(keys: Keys) -> None:
    flags = ["--tenant", "acme", "--role", "viewer", "--rpm", "60", "--concurrent", "4"]
    created = runner.invoke(app, ["keys", "create", "bot", *flags])
    key = keys.authenticate(created.output.splitlines()[-1])
    assert (key.tenant, key.role, key.requests_per_minute, key.concurrent_requests) == ("acme", Role.VIEWER, 60, 4)
    assert "viewer of acme: may look at everything there and ask its models" in created.stderr
    runner.invoke(app, ["keys", "create", "alice"])
    lines = runner.invoke(app, ["keys", "list"]).output.splitlines()
    assert [line.split("\t")[1:6] for line in lines] == [
        ["bot", "acme", "viewer", "60", "4"],
        ["alice", "shared", "admin", "", ""],
    ]
    assert runner.invoke(app, ["keys", "list", "--tenant", "acme"]).output.splitlines() == lines[:1]


def test_the_tenant_that_commands_act_for_is_the_keys_too(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    keys.create("operator")
    monkeypatch.setenv("MENS_TENANT", "acme")
    key = keys.authenticate(runner.invoke(app, ["keys", "create", "ada"]).stdout.strip())
    assert (key.tenant, key.role) == ("acme", Role.ADMIN)
    assert [line.split("\t")[1] for line in runner.invoke(app, ["keys", "list"]).output.splitlines()] == ["ada"]
    flags = ["--tenant", "other"]
    assert keys.authenticate(runner.invoke(app, ["keys", "create", "bob", *flags]).stdout.strip()).tenant == "other"


@pytest.mark.parametrize(
    "flags", [["--tenant", "Acme"], ["--tenant", ""], ["--role", "root"], ["--rpm", "0"], ["--concurrent", "-1"]]
)
def test_nonsense_makes_no_key(keys: Keys, flags: list[str]) -> None:
    assert runner.invoke(app, ["keys", "create", "bot", *flags]).exit_code != 0
    assert keys.all() == []


def test_a_name_that_is_taken(keys: Keys) -> None:
    key, _ = keys.create("alice")
    again = runner.invoke(app, ["keys", "create", "alice", "--role", "viewer"])
    assert (again.exit_code, again.stdout) == (1, "")
    assert again.stderr.startswith("error: KEY_NAME_TAKEN")
    assert f"mens keys revoke {key.id}" in again.stderr
    assert keys.all() == [key]


@pytest.mark.parametrize(
    ("flags", "told", "limits"),
    [
        (["--rpm", "120"], "120 requests to models a minute, 4 at once", (120, 4)),
        (["--concurrent", "none"], "60 requests to models a minute, any number at once", (60, None)),
        (["--rpm", "none", "--concurrent", "2"], "any number of requests to models a minute, 2 at once", (None, 2)),
    ],
)
def test_other_limits(keys: Keys, flags: list[str], told: str, limits: tuple[int | None, int | None]) -> None:
    key, _ = keys.create("bot", limits=KeyLimits(requests_per_minute=60, concurrent_requests=4))
    changed = runner.invoke(app, ["keys", "limit", key.id, *flags])
    assert (changed.exit_code, changed.output.strip()) == (0, f"{key.id} (bot): {told}")
    [key] = keys.all()
    assert (key.requests_per_minute, key.concurrent_requests) == limits


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], "--rpm N"),
        (["--rpm", "0"], "none"),
        (["--rpm", "-1"], "none"),
        (["--concurrent", "1.5"], "none"),
        (["--concurrent", "²"], "none"),
        (["--rpm", "9" * 9], "none"),
        (["--rpm", "120", "--concurrent", "all"], "none"),
    ],
)
def test_limits_that_are_none(keys: Keys, flags: list[str], told: str) -> None:
    key, _ = keys.create("bot")
    refused = runner.invoke(app, ["keys", "limit", key.id, *flags])
    assert (refused.exit_code, told in refused.stderr) == (2, True)
    assert keys.all() == [key]


def test_limits_of_no_key(keys: Keys) -> None:
    refused = runner.invoke(app, ["keys", "limit", "key-none", "--rpm", "1"])
    assert (refused.exit_code, "KEY_NOT_FOUND" in refused.stderr) == (1, True)


@pytest.mark.parametrize("name", ["", "x" * 65, "two\nlines"])
def test_name_that_is_none(keys: Keys, name: str) -> None:
    created = runner.invoke(app, ["keys", "create", name])
    assert (created.exit_code, "NAME_INVALID" in created.output) == (1, True)
    assert keys.all() == []
