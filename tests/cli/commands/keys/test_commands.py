"""``mens keys``, on the database and over a real API: roles of a new key, its limits, and the key that a name means."""

from __future__ import annotations

import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from shared.database.callers.key_records import Key
from shared.database.callers.keys import Keys
from shared.database.connection import Database
from shared.database.tables.keys import KeyRow
from shared.database.tenancy import SHARED, KeyLimits, Role
from shared.settings import Settings
from tests.support.cli_installation import CliInstallation

runner = CliRunner()


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_template: Path) -> Keys:
    """The keys of an installation on this machine; a key in the environment, the operator alice's, is not used."""
    monkeypatch.setenv("MENS_HOME", str(tmp_path))
    monkeypatch.delenv("MENS_API_URL", raising=False)
    monkeypatch.delenv("MENS_TENANT", raising=False)
    shutil.copy(sqlite_template, tmp_path / "mens.db")
    keys = Keys(Database(Settings().database_url))
    monkeypatch.setenv("MENS_API_KEY", keys.create("alice")[1])
    return keys


@pytest.fixture
def remote(installation: CliInstallation, tmp_path: Path) -> CliInstallation:
    """An installation elsewhere, and a machine with nothing but its address and the key of the operator alice."""
    installation.patch.setenv("MENS_HOME", str(tmp_path / "nothing"))
    # As if only the command line were installed.
    for module in ("shared.database.connection", "shared.database.callers.keys"):
        installation.patch.setitem(sys.modules, module, None)
    return installation


@pytest.fixture(params=["local", pytest.param("remote", marks=pytest.mark.network)])
def keys(request: pytest.FixtureRequest) -> Keys:
    """The keys of an installation whose only key is alice's; `mens keys` reaches it in one of its two ways."""
    found: Keys | CliInstallation = request.getfixturevalue(request.param)
    return found.services.keys if isinstance(found, CliInstallation) else found


def made(keys: Keys) -> list[Key]:
    """Return the keys other than alice's."""
    return keys.all()[1:]


def test_key_without_flags_is_an_operators(keys: Keys) -> None:
    created = runner.invoke(app, ["keys", "create", "bob"])
    key = keys.authenticate(created.stdout.strip())
    [line] = created.stderr.splitlines()
    assert line.startswith(f"{key.id} for bob, admin of shared, the operator: may do everything in every tenant;")
    assert (key.tenant, key.role, key.requests_per_minute, key.concurrent_requests) == (SHARED, Role.ADMIN, None, None)


def test_key_of_a_tenant_with_limits(keys: Keys) -> None:
    flags = ["--tenant", "acme", "--role", "viewer", "--rpm", "60", "--concurrent", "4"]
    created = runner.invoke(app, ["keys", "create", "bot", *flags])
    key = keys.authenticate(created.stdout.strip())
    assert (key.tenant, key.role, key.requests_per_minute, key.concurrent_requests) == ("acme", Role.VIEWER, 60, 4)
    assert "viewer of acme: may read everything there and send requests to its models" in created.stderr
    when = f"{key.created_at:%Y-%m-%d %H:%M}"
    listed = runner.invoke(app, ["keys", "list", "--tenant", "acme"])
    assert listed.stdout == f"{key.id}\tbot\tacme\tviewer\t60\t4\t\t{when}\t\t\t\n"
    assert created.stdout.strip() not in listed.output


def test_tenant_of_environment_applies_to_keys(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_invalid_flags_make_no_key(local: Keys, flags: list[str]) -> None:
    assert runner.invoke(app, ["keys", "create", "bot", *flags]).exit_code == 2
    assert made(local) == []


@pytest.mark.parametrize("command", [["list"], ["limit", "bot", "--rpm", "1"], ["revoke", "bot"]])
def test_empty_tenant_is_refused(local: Keys, command: list[str]) -> None:
    key, _ = local.create("bot", "acme")
    assert runner.invoke(app, ["keys", *command, "--tenant", ""]).exit_code == 2
    assert made(local) == [key]


def test_taken_name_is_refused(keys: Keys) -> None:
    key, _ = keys.create("bot")
    again = runner.invoke(app, ["keys", "create", "bot", "--role", "viewer"])
    assert (again.exit_code, again.stdout) == (1, "")
    assert again.stderr.startswith("error: KEY_NAME_TAKEN")
    assert f"mens keys revoke {key.id}" in again.stderr
    assert made(keys) == [key]


def test_invalid_names_are_refused(keys: Keys) -> None:
    for arguments in ([""], ["x" * 65], ["two\nlines"], ["bot", "--tenant", "default"]):
        created = runner.invoke(app, ["keys", "create", *arguments])
        assert (created.exit_code, created.stdout, "_INVALID: " in created.stderr) == (1, "", True)
        assert "1 to 64 characters in one line" in created.stderr or "'default'" in created.stderr
    assert made(keys) == []


def test_invalid_role_is_refused(local: Keys) -> None:
    refused = runner.invoke(app, ["keys", "create", "bot", "--role", "superuser"]).stderr
    assert "'superuser' is not a role" in refused
    assert "Value error" not in refused


def test_none_means_no_limit_when_a_key_is_made(keys: Keys) -> None:
    assert runner.invoke(app, ["keys", "create", "bot", "--rpm", "None", "--concurrent", "NONE"]).exit_code == 0
    [key] = made(keys)
    assert (key.requests_per_minute, key.concurrent_requests) == (None, None)


def test_revoking_the_installations_own_key_prints_a_note(keys: Keys) -> None:
    for name, is_own in (("mens-up", True), ("mens-up-2", True), ("mens-upper", False)):
        keys.create(name)
        output = runner.invoke(app, ["keys", "revoke", name])
        assert (output.exit_code, "restart `mens up`" in output.stderr) == (0, is_own)


@pytest.mark.network
def test_unknown_tenant_is_refused(installation: CliInstallation) -> None:
    installation.patch.setenv("MENS_TENANT", "acmee")
    refused = installation.mens("models", code=1)
    assert refused.startswith("error: TENANT_NOT_FOUND: The tenant 'acmee' does not exist. Check MENS_TENANT")
    installation.patch.setenv("MENS_TENANT", "Acme")
    assert "MENS_TENANT: 'Acme' is not 1 to 63 characters of a-z" in installation.mens("models", code=1)


# -- other limits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "output", "limits"),
    [
        (["--rpm", "120"], "120 model requests per minute, 4 at once", (120, 4)),
        (["--concurrent", "NONE"], "60 model requests per minute, any number at once", (60, None)),
        (["--tpm", "9000000"], "60 model requests per minute, 4 at once, 9000000 tokens per minute", (60, 4)),
        (["--rpm", "none", "--concurrent", "2"], "any number of model requests per minute, 2 at once", (None, 2)),
    ],
)
def test_limits_are_changed(keys: Keys, flags: list[str], output: str, limits: tuple[int | None, int | None]) -> None:
    key, _ = keys.create("bot", limits=KeyLimits(requests_per_minute=60, concurrent_requests=4))
    changed = runner.invoke(app, ["keys", "limit", key.id, *flags])
    assert (changed.exit_code, changed.output.strip()) == (0, f"{key.id} (bot of shared): {output}")
    [key] = made(keys)
    assert (key.requests_per_minute, key.concurrent_requests) == limits


@pytest.mark.parametrize(
    ("flags", "output"),
    [
        ([], "--rpm N"),
        (["--rpm", "0"], "none"),
        (["--rpm", "-1"], "none"),
        (["--concurrent", "1.5"], "none"),
        (["--concurrent", "²"], "none"),
        (["--rpm", "9" * 9], "none"),
        (["--tpm", "9" * 10], "none"),
        (["--rpm", "120", "--concurrent", "all"], "none"),
    ],
)
def test_invalid_limits_are_refused(local: Keys, flags: list[str], output: str) -> None:
    key, _ = local.create("bot")
    refused = runner.invoke(app, ["keys", "limit", key.id, *flags])
    assert (refused.exit_code, output in refused.stderr) == (2, True)
    assert made(local) == [key]


def test_limits_of_revoked_key_cannot_change(keys: Keys) -> None:
    key, _ = keys.create("bot")
    keys.revoke(key.id)
    refused = runner.invoke(app, ["keys", "limit", key.id, "--rpm", "1"])
    assert (refused.exit_code, refused.stderr.startswith("error: KEY_REVOKED")) == (1, True)


# -- rotation, expiry, other changes -----------------------------------------------------------------------------------


def test_key_is_rotated(keys: Keys) -> None:
    key, old = keys.create("bot")
    rotated = runner.invoke(app, ["keys", "rotate", "bot", "--overlap", "2h"])
    assert keys.authenticate(rotated.stdout.strip()) == keys.authenticate(old)
    [changed] = made(keys)
    assert changed.previous_secret_until
    until = f"{changed.previous_secret_until:%Y-%m-%d %H:%M}"
    assert rotated.stderr.startswith(f"{key.id} (bot of shared): the old secret is valid until {until} UTC;")
    assert "the old secret is no longer valid" in runner.invoke(app, ["keys", "rotate", "bot", "--overlap", "0"]).stderr


def test_key_is_made_with_an_expiry_and_changed(keys: Keys) -> None:
    assert runner.invoke(app, ["keys", "create", "bot", "--expires", "2200-01-31"]).exit_code == 0
    [key] = made(keys)
    assert key.expires_at == datetime(2200, 1, 31, tzinfo=UTC)
    assert "\t2200-01-31 00:00\t" in runner.invoke(app, ["keys", "list"]).stdout
    flags = ["--name", "robot", "--role", "viewer", "--expires", "none"]
    changed = runner.invoke(app, ["keys", "change", "bot", *flags])
    assert changed.output == f"{key.id} (robot of shared): viewer, never expires\n"
    assert made(keys) == [key.model_copy(update={"name": "robot", "role": Role.VIEWER, "expires_at": None})]
    runner.invoke(app, ["keys", "change", "robot", "--expires", "90d"])
    [key] = made(keys)
    assert key.expires_at
    assert abs(key.expires_at - datetime.now(UTC) - timedelta(days=90)) < timedelta(minutes=5)
    for arguments, error in (
        (["--expires", "2020-01-01"], "KEY_EXPIRY_INVALID"),
        (["--name", "alice"], "KEY_NAME_TAKEN"),
    ):
        refused = runner.invoke(app, ["keys", "change", "robot", *arguments])
        assert (refused.exit_code, refused.stderr.startswith(f"error: {error}")) == (1, True)
    assert made(keys) == [key]


@pytest.mark.parametrize(
    "command",
    [
        ["change", "bot"],
        ["change", "bot", "--role", "root"],
        ["change", "bot", "--expires", "soon"],
        ["change", "bot", "--expires", "0d"],
        ["change", "bot", "--expires", "999999d999"],
        ["rotate", "bot", "--overlap", "91d"],
        ["rotate", "bot", "--overlap", "24"],
    ],
)
def test_invalid_times_and_roles_change_nothing(local: Keys, command: list[str]) -> None:
    key, _ = local.create("bot")
    assert runner.invoke(app, ["keys", *command]).exit_code == 2
    assert made(local) == [key]


def test_invalid_name_is_refused_in_the_database_too(local: Keys) -> None:
    key, _ = local.create("bot")
    refused = runner.invoke(app, ["keys", "change", "bot", "--name", "two\nlines"])
    assert (refused.exit_code, refused.stderr.startswith("error: NAME_INVALID")) == (1, True)
    assert made(local) == [key]


# -- which key -------------------------------------------------------------------------------------------------------


def test_key_is_given_by_id_or_name(keys: Keys) -> None:
    for named in ("id", "name"):
        key, _ = keys.create("the / bot?")
        assert runner.invoke(app, ["keys", "limit", getattr(key, named), "--rpm", "7"]).exit_code == 0
        revoked = runner.invoke(app, ["keys", "revoke", getattr(key, named)])
        assert revoked.output == f"{key.id} (the / bot? of shared) is revoked\n"
        last = keys.all()[-1]
        assert (last.id, last.requests_per_minute, last.revoked_at is None) == (key.id, 7, False)


def test_name_of_revoked_key_is_free(keys: Keys) -> None:
    first, _ = keys.create("bot")
    assert runner.invoke(app, ["keys", "revoke", "bot"]).exit_code == 0
    for command in (["limit", "--rpm", "1"], ["revoke"]):
        refused = runner.invoke(app, ["keys", *command, "bot"]).stderr
        assert refused.startswith("error: KEY_REVOKED: The key 'bot' is permanently revoked.")
    second, _ = keys.create("bot")
    assert runner.invoke(app, ["keys", "revoke", first.id]).exit_code == 0, "repeating it changes nothing"
    assert made(keys)[-1] == second
    assert runner.invoke(app, ["keys", "revoke", "bot"]).output.startswith(second.id)


def test_id_wins_over_name(keys: Keys) -> None:
    key, _ = keys.create("bot")
    other, _ = keys.create(key.id)
    assert runner.invoke(app, ["keys", "revoke", key.id]).output.startswith(f"{key.id} (bot of")
    assert made(keys)[-1] == other


def test_ambiguous_name_lists_the_keys(keys: Keys) -> None:
    """Such keys were made before a name belonged to one key at a time."""
    first, second = keys.create("bot")[0], keys.create("robot", role=Role.VIEWER)[0]
    with keys._db.write() as session:
        session.get_one(KeyRow, second.id).name = "bot"
    refused = runner.invoke(app, ["keys", "revoke", "bot"])
    assert (refused.exit_code, refused.stderr.splitlines()) == (
        1,
        [
            "error: ID_AMBIGUOUS: 2 keys have the name 'bot'. Give the id instead of the name.",
            f"  {first.id}  admin of shared",
            f"  {second.id}  viewer of shared",
        ],
    )
    assert [key.revoked_at for key in made(keys)] == [None, None]


def test_tenant_selects_among_keys_of_one_name(keys: Keys) -> None:
    ours, theirs = keys.create("bot", "acme")[0], keys.create("bot", "other")[0]
    assert runner.invoke(app, ["keys", "revoke", "bot", "--tenant", "other"]).output.startswith(theirs.id)
    refused = runner.invoke(app, ["keys", "revoke", ours.id, "--tenant", "other"])
    assert (refused.exit_code, "KEY_NOT_FOUND" in refused.stderr) == (1, True)
    assert made(keys)[0] == ours


def test_tenant_that_never_had_a_key_is_refused(keys: Keys) -> None:
    keys.create("bot", "acme")
    for command in (["list"], ["revoke", "bot"]):
        refused = runner.invoke(app, ["keys", *command, "--tenant", "acmee"])
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert refused.stderr.startswith("error: TENANT_NOT_FOUND: ")
        assert "'acmee'" in refused.stderr
    assert runner.invoke(app, ["keys", "list", "--tenant", "acme"]).exit_code == 0


def test_database_searches_names_of_all_tenants(local: Keys) -> None:
    ours, theirs = local.create("bot", "acme")[0], local.create("bot", "other")[0]
    output = runner.invoke(app, ["keys", "limit", "bot", "--rpm", "1"]).stderr
    assert f"{ours.id}  admin of acme\n  {theirs.id}  admin of other" in output
    runner.invoke(app, ["keys", "revoke", theirs.id])
    assert runner.invoke(app, ["keys", "limit", "bot", "--rpm", "1"]).output.startswith(f"{ours.id} (bot of acme)")


def test_unknown_key_is_refused(keys: Keys) -> None:
    for named in ("key-none", "..", "../aliases/prod", ""):
        for command in (["limit", "--rpm", "1"], ["revoke"]):
            refused = runner.invoke(app, ["keys", *command, "--", named])
            assert (refused.exit_code, refused.stdout) == (1, "")
            assert refused.stderr.startswith("error: KEY_NOT_FOUND: ")
            assert repr(named) in refused.stderr and "List them: `mens keys list`" in refused.stderr


# -- over the API ----------------------------------------------------------------------------------------------------


@pytest.mark.network
def test_admin_of_a_tenant_manages_keys_of_that_tenant_only(remote: CliInstallation) -> None:
    remote.become("boss", "acme")
    remote.mens("keys", "create", "bot", "--role", "viewer")
    assert [line.split("\t")[1:4] for line in remote.mens("keys", "list").splitlines()] == [
        ["boss", "acme", "admin"],
        ["bot", "acme", "viewer"],
    ]
    refused = remote.mens("keys", "create", "spy", "--tenant", "shared", code=1)
    assert refused.startswith("error: TENANT_FORBIDDEN")
    assert refused.endswith("Unset MENS_TENANT and leave --tenant out.")
    for command in (["list"], ["revoke", "alice"], ["revoke", remote.key.id]):
        assert "TENANT_FORBIDDEN" in remote.mens("keys", *command, "--tenant", "shared", code=1)
    for named in ("alice", remote.key.id):
        assert "KEY_NOT_FOUND" in remote.mens("keys", "revoke", named, code=1)
    assert [key.revoked_at for key in remote.services.keys.all()] == [None] * 3


@pytest.mark.network
def test_keys_over_the_api_need_an_admin(remote: CliInstallation) -> None:
    remote.become("tess", "acme", Role.TRAINER)
    for command in (["list"], ["create", "bot"], ["revoke", "tess"], ["limit", "tess", "--rpm", "none"]):
        assert "ROLE_INSUFFICIENT" in remote.mens("keys", *command, code=1)


@pytest.mark.network
def test_unknown_api_key_is_refused(remote: CliInstallation) -> None:
    remote.patch.setenv("MENS_API_KEY", "mens-typo")
    refused = remote.mens("keys", "create", "bot", code=1)
    assert "KEY_INVALID" in refused
    assert "Set MENS_API_KEY to a key that an admin created" in refused
    assert "mens-typo" not in refused


@pytest.mark.parametrize("is_whole", [True, False])
def test_missing_url_and_installation_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    monkeypatch.delenv("MENS_API_URL", raising=False)
    monkeypatch.setenv("MENS_API_KEY", "mens-mine")
    monkeypatch.setenv("MENS_HOME", str(tmp_path))
    # As if only the command line were installed.
    if not is_whole:
        monkeypatch.setitem(sys.modules, "shared.database.connection", None)
    refused = runner.invoke(app, ["keys", "list"])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith(
        f"error: INSTALLATION_NOT_FOUND: MENS_API_URL is not set, and {tmp_path} contains no installation. Start"
    )
    assert list(tmp_path.iterdir()) == [], "no empty database is left behind"
