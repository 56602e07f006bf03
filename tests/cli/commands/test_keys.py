"""``mens keys``, in the database and over a real API: whose a key is and what it may do is said when it is made, and shown
ever after; limits can change; who names a key means one.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from shared.db import Database
from shared.keys import Key, Keys
from shared.settings import Settings
from shared.tables import KeyRow
from shared.tenancy import SHARED, KeyLimits, Role
from tests.cli.conftest import Installation

runner = CliRunner()


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_template: Path) -> Keys:
    """The keys of an installation on this machine; a key in the environment, the operator alice's, is not asked for."""
    monkeypatch.setenv("MENS_HOME", str(tmp_path))
    monkeypatch.delenv("MENS_API_URL", raising=False)
    monkeypatch.delenv("MENS_TENANT", raising=False)
    shutil.copy(sqlite_template, tmp_path / "mens.db")
    keys = Keys(Database(Settings().database_url))
    monkeypatch.setenv("MENS_API_KEY", keys.create("alice")[1])
    return keys


@pytest.fixture
def laptop(installation: Installation, tmp_path: Path) -> Installation:
    """An installation elsewhere, and a machine with nothing but its address and the key of the operator alice."""
    installation.patch.setenv("MENS_HOME", str(tmp_path / "nothing"))
    for module in ("shared.db", "shared.keys"):  # as if only the command line were installed
        installation.patch.setitem(sys.modules, module, None)
    return installation


@pytest.fixture(params=["local", pytest.param("laptop", marks=pytest.mark.network)])
def keys(request: pytest.FixtureRequest) -> Keys:
    """The keys of an installation whose only key is alice's; `mens keys` reaches it in one of its two ways."""
    found: Keys | Installation = request.getfixturevalue(request.param)
    return found.services.keys if isinstance(found, Installation) else found


def made(keys: Keys) -> list[Key]:
    """The keys beside alice's."""
    return keys.all()[1:]


def test_key_without_flags_runs_the_installation(keys: Keys) -> None:
    created = runner.invoke(app, ["keys", "create", "bob"])
    key = keys.authenticate(created.stdout.strip())
    [told] = created.stderr.splitlines()
    assert told.startswith(f"{key.id} for bob, admin of shared, the operator: may do everything in every tenant;")
    assert (key.tenant, key.role, key.requests_per_minute, key.concurrent_requests) == (SHARED, Role.ADMIN, None, None)


def test_key_of_a_tenant(keys: Keys) -> None:
    flags = ["--tenant", "acme", "--role", "viewer", "--rpm", "60", "--concurrent", "4"]
    created = runner.invoke(app, ["keys", "create", "bot", *flags])
    key = keys.authenticate(created.stdout.strip())
    assert (key.tenant, key.role, key.requests_per_minute, key.concurrent_requests) == ("acme", Role.VIEWER, 60, 4)
    assert "viewer of acme: may look at everything there and ask its models" in created.stderr
    when = f"{key.created_at:%Y-%m-%d %H:%M}"
    listed = runner.invoke(app, ["keys", "list", "--tenant", "acme"])
    assert listed.stdout == f"{key.id}\tbot\tacme\tviewer\t60\t4\t{when}\t\n"
    assert created.stdout.strip() not in listed.output


def test_the_tenant_that_commands_act_for_is_the_keys_too(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_TENANT", "acme")
    key = keys.authenticate(runner.invoke(app, ["keys", "create", "ada"]).stdout.strip())
    assert (key.tenant, key.role) == ("acme", Role.ADMIN)
    assert [line.split("\t")[1] for line in runner.invoke(app, ["keys", "list"]).output.splitlines()] == ["ada"]
    flags = ["--tenant", "other"]
    assert keys.authenticate(runner.invoke(app, ["keys", "create", "bob", *flags]).stdout.strip()).tenant == "other"
    listed = runner.invoke(app, ["keys", "list", *flags]).output.splitlines()
    assert [line.split("\t")[1] for line in listed] == ["bob"]


@pytest.mark.parametrize(
    "flags", [["--tenant", "Acme"], ["--tenant", ""], ["--role", "root"], ["--rpm", "0"], ["--concurrent", "-1"]]
)
def test_nonsense_makes_no_key(local: Keys, flags: list[str]) -> None:
    assert runner.invoke(app, ["keys", "create", "bot", *flags]).exit_code == 2
    assert made(local) == []


@pytest.mark.parametrize("command", [["list"], ["limit", "bot", "--rpm", "1"], ["revoke", "bot"]])
def test_a_tenant_that_is_left_empty_is_not_every_tenant(local: Keys, command: list[str]) -> None:
    key, _ = local.create("bot", "acme")
    assert runner.invoke(app, ["keys", *command, "--tenant", ""]).exit_code == 2
    assert made(local) == [key]


def test_a_name_that_is_taken(keys: Keys) -> None:
    key, _ = keys.create("bot")
    again = runner.invoke(app, ["keys", "create", "bot", "--role", "viewer"])
    assert (again.exit_code, again.stdout) == (1, "")
    assert again.stderr.startswith("error: KEY_NAME_TAKEN")
    assert f"mens keys revoke {key.id}" in again.stderr
    assert made(keys) == [key]


def test_names_that_are_none(keys: Keys) -> None:
    for arguments in ([""], ["x" * 65], ["two\nlines"], ["bot", "--tenant", "default"]):
        created = runner.invoke(app, ["keys", "create", *arguments])
        assert (created.exit_code, created.stdout, "_INVALID: " in created.stderr) == (1, "", True)
        assert "1 to 64 characters in one line" in created.stderr or "'default'" in created.stderr
    assert made(keys) == []


def test_a_role_that_is_none(local: Keys) -> None:
    refused = runner.invoke(app, ["keys", "create", "bot", "--role", "superuser"]).stderr
    assert "'superuser' is no role" in refused
    assert "Value error" not in refused


def test_no_limit_is_said_alike_when_a_key_is_made(keys: Keys) -> None:
    assert runner.invoke(app, ["keys", "create", "bot", "--rpm", "None", "--concurrent", "NONE"]).exit_code == 0
    [key] = made(keys)
    assert (key.requests_per_minute, key.concurrent_requests) == (None, None)


def test_the_installation_s_own_key(keys: Keys) -> None:
    for name, is_own in (("mens-up", True), ("mens-up-2", True), ("mens-upper", False)):
        keys.create(name)
        told = runner.invoke(app, ["keys", "revoke", name])
        assert (told.exit_code, "restart `mens up`" in told.stderr) == (0, is_own)


@pytest.mark.network
def test_a_tenant_that_nobody_has(installation: Installation) -> None:
    installation.patch.setenv("MENS_TENANT", "acmee")
    refused = installation.mens("models", code=1)
    assert refused.startswith("error: TENANT_NOT_FOUND: There is no tenant 'acmee'. Check MENS_TENANT")
    installation.patch.setenv("MENS_TENANT", "Acme")
    assert "MENS_TENANT: 'Acme' is not 1 to 63 of a-z" in installation.mens("models", code=1)


# -- other limits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "told", "limits"),
    [
        (["--rpm", "120"], "120 requests to models a minute, 4 at once", (120, 4)),
        (["--concurrent", "NONE"], "60 requests to models a minute, any number at once", (60, None)),
        (["--rpm", "none", "--concurrent", "2"], "any number of requests to models a minute, 2 at once", (None, 2)),
    ],
)
def test_other_limits(keys: Keys, flags: list[str], told: str, limits: tuple[int | None, int | None]) -> None:
    key, _ = keys.create("bot", limits=KeyLimits(requests_per_minute=60, concurrent_requests=4))
    changed = runner.invoke(app, ["keys", "limit", key.id, *flags])
    assert (changed.exit_code, changed.output.strip()) == (0, f"{key.id} (bot of shared): {told}")
    [key] = made(keys)
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
def test_limits_that_are_none(local: Keys, flags: list[str], told: str) -> None:
    key, _ = local.create("bot")
    refused = runner.invoke(app, ["keys", "limit", key.id, *flags])
    assert (refused.exit_code, told in refused.stderr) == (2, True)
    assert made(local) == [key]


def test_a_revoked_key_gets_no_other_limits(keys: Keys) -> None:
    key, _ = keys.create("bot")
    keys.revoke(key.id)
    refused = runner.invoke(app, ["keys", "limit", key.id, "--rpm", "1"])
    assert (refused.exit_code, refused.stderr.startswith("error: KEY_REVOKED")) == (1, True)


# -- which key -------------------------------------------------------------------------------------------------------


def test_a_key_is_named_by_its_id_or_its_name(keys: Keys) -> None:
    for named in ("id", "name"):
        key, _ = keys.create("the / bot?")
        assert runner.invoke(app, ["keys", "limit", getattr(key, named), "--rpm", "7"]).exit_code == 0
        revoked = runner.invoke(app, ["keys", "revoke", getattr(key, named)])
        assert revoked.output == f"{key.id} (the / bot? of shared) is revoked\n"
        last = keys.all()[-1]
        assert (last.id, last.requests_per_minute, last.revoked_at is None) == (key.id, 7, False)


def test_a_revoked_key_has_lost_its_name(keys: Keys) -> None:
    first, _ = keys.create("bot")
    assert runner.invoke(app, ["keys", "revoke", "bot"]).exit_code == 0
    for command in (["limit", "--rpm", "1"], ["revoke"]):
        refused = runner.invoke(app, ["keys", *command, "bot"]).stderr
        assert refused.startswith("error: KEY_NOT_FOUND: The key 'bot' is revoked, for good.")
    second, _ = keys.create("bot")
    assert runner.invoke(app, ["keys", "revoke", first.id]).exit_code == 0, "repeating it changes nothing"
    assert made(keys)[-1] == second
    assert runner.invoke(app, ["keys", "revoke", "bot"]).output.startswith(second.id)


def test_an_id_goes_before_a_name(keys: Keys) -> None:
    key, _ = keys.create("bot")
    other, _ = keys.create(key.id)
    assert runner.invoke(app, ["keys", "revoke", key.id]).output.startswith(f"{key.id} (bot of")
    assert made(keys)[-1] == other


def test_keys_of_one_name_are_listed(keys: Keys) -> None:
    """They were made before names were taken."""
    first, second = keys.create("bot")[0], keys.create("robot", role=Role.VIEWER)[0]
    with keys._db.write() as session:
        session.get_one(KeyRow, second.id).name = "bot"
    refused = runner.invoke(app, ["keys", "revoke", "bot"])
    assert (refused.exit_code, refused.stderr.splitlines()) == (
        1,
        [
            "error: 2 keys have the name 'bot'; say which by its id:",
            f"  {first.id}  admin of shared",
            f"  {second.id}  viewer of shared",
        ],
    )
    assert [key.revoked_at for key in made(keys)] == [None, None]


def test_a_tenant_tells_keys_of_one_name_apart(keys: Keys) -> None:
    ours, theirs = keys.create("bot", "acme")[0], keys.create("bot", "other")[0]
    assert runner.invoke(app, ["keys", "revoke", "bot", "--tenant", "other"]).output.startswith(theirs.id)
    refused = runner.invoke(app, ["keys", "revoke", ours.id, "--tenant", "other"])
    assert (refused.exit_code, "KEY_NOT_FOUND" in refused.stderr) == (1, True)
    assert made(keys)[0] == ours


def test_in_the_database_every_tenant_s_keys_have_names(local: Keys) -> None:
    ours, theirs = local.create("bot", "acme")[0], local.create("bot", "other")[0]
    told = runner.invoke(app, ["keys", "limit", "bot", "--rpm", "1"]).stderr
    assert f"{ours.id}  admin of acme\n  {theirs.id}  admin of other" in told
    runner.invoke(app, ["keys", "revoke", theirs.id])
    assert runner.invoke(app, ["keys", "limit", "bot", "--rpm", "1"]).output.startswith(f"{ours.id} (bot of acme)")


def test_no_such_key(keys: Keys) -> None:
    for named in ("key-none", "..", "../aliases/prod", ""):
        for command in (["limit", "--rpm", "1"], ["revoke"]):
            refused = runner.invoke(app, ["keys", *command, "--", named])
            assert (refused.exit_code, refused.stdout) == (1, "")
            told = f"error: KEY_NOT_FOUND: There is no key {named!r}. List them: `mens keys list`"
            assert refused.stderr.startswith(told)


# -- the two ways ----------------------------------------------------------------------------------------------------


@pytest.mark.network
def test_over_the_api_a_tenant_s_admin_manages_the_own_keys_alone(laptop: Installation) -> None:
    laptop.become("boss", "acme")
    laptop.mens("keys", "create", "bot", "--role", "viewer")
    assert [line.split("\t")[1:4] for line in laptop.mens("keys", "list").splitlines()] == [
        ["boss", "acme", "admin"],
        ["bot", "acme", "viewer"],
    ]
    refused = laptop.mens("keys", "create", "spy", "--tenant", "shared", code=1)
    assert refused.startswith("error: TENANT_FORBIDDEN")
    assert refused.endswith("Leave MENS_TENANT unset and --tenant out.")
    for command in (["list"], ["revoke", "alice"], ["revoke", laptop.key.id]):
        assert "TENANT_FORBIDDEN" in laptop.mens("keys", *command, "--tenant", "shared", code=1)
    for named in ("alice", laptop.key.id):
        assert "KEY_NOT_FOUND" in laptop.mens("keys", "revoke", named, code=1)
    assert [key.revoked_at for key in laptop.services.keys.all()] == [None] * 3


@pytest.mark.network
def test_over_the_api_keys_are_for_admins(laptop: Installation) -> None:
    laptop.become("tess", "acme", Role.TRAINER)
    for command in (["list"], ["create", "bot"], ["revoke", "tess"], ["limit", "tess", "--rpm", "none"]):
        assert "ROLE_INSUFFICIENT" in laptop.mens("keys", *command, code=1)


@pytest.mark.network
def test_a_key_that_is_not_known(laptop: Installation) -> None:
    laptop.patch.setenv("MENS_API_KEY", "mens-typo")
    refused = laptop.mens("keys", "create", "bot", code=1)
    assert "KEY_INVALID" in refused
    assert "Set MENS_API_KEY to one that an admin made" in refused
    assert "mens-typo" not in refused


@pytest.mark.parametrize("is_whole", [True, False])
def test_without_url_and_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_whole: bool) -> None:
    monkeypatch.delenv("MENS_API_URL", raising=False)
    monkeypatch.setenv("MENS_API_KEY", "mens-mine")
    monkeypatch.setenv("MENS_HOME", str(tmp_path))
    if not is_whole:  # only the command line is installed
        monkeypatch.setitem(sys.modules, "shared.db", None)
    refused = runner.invoke(app, ["keys", "list"])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith(f"error: MENS_API_URL is not set, and there is no installation in {tmp_path}. Set")
    assert list(tmp_path.iterdir()) == [], "no empty database is left behind"
