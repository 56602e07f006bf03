"""The command line as a whole: help, version, error messages, and the catalogue commands offline."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from api.migrate import migrate
from cli.main import app, main
from shared.base_models.catalog import Catalog, save_catalog
from shared.settings import Settings
from tests.support.builders import base_entry

runner = CliRunner()
FIELDS = {"code", "message", "remedy", "param", "details", "retryable"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MENS_HOME", str(tmp_path))
    for name in ("MENS_API_URL", "MENS_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_version() -> None:
    assert re.fullmatch(r"mens \d+\.\d+\.\d+\n", runner.invoke(app, ["--version"]).stdout)


@pytest.mark.parametrize("command", [["status"], ["chat", "m", "hi"], ["models"], ["keys", "list"]])
def test_without_installation_every_command_says_the_same(home: Path, command: list[str]) -> None:
    result = runner.invoke(app, command)
    message = f"error: INSTALLATION_NOT_FOUND: MENS_API_URL is not set, and {home} contains no installation. Start"
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(message)
    assert all(name in result.stderr for name in ("`mens up`", "MENS_HOME", "MENS_API_KEY"))


def test_installation_that_is_stopped_is_there(home: Path) -> None:
    home.mkdir(exist_ok=True)
    (home / "mens.db").touch()
    result = runner.invoke(app, ["models"])
    assert f"and the installation in {home} is not running. Start it with `mens up`" in result.stderr


@pytest.mark.parametrize(
    ("names", "command", "starts"),
    [
        ([], ["chat", "mine", "hi"], "`mens up` (with --base NAME "),
        (["mine"], ["models"], "`mens up --base mine`;"),
        (["mine"], ["chat", "an-alias", "hi"], "`mens up --base mine`;"),
        (["mine", "other"], ["models"], "`mens up` (with --base NAME "),
        (["mine", "other"], ["chat", "an-alias", "hi"], "`mens up` (with --base NAME "),
        (["mine", "other"], ["chat", "other", "hi"], "`mens up --base other`;"),
        (["mine", "other"], ["train", __file__, "--model", "mine"], "`mens up --base mine`;"),
    ],
)
def test_the_command_that_starts_an_installation_names_the_base(
    home: Path, names: list[str], command: list[str], starts: str
) -> None:
    save_catalog(home / "catalog.json", Catalog(bases=[base_entry(name) for name in names]))
    assert starts in runner.invoke(app, command).stderr


@pytest.mark.parametrize(
    ("url", "key", "code", "retryable"),
    [
        ("http://127.0.0.1:9", "k", "API_UNAVAILABLE", True),
        ("", "", "INSTALLATION_NOT_FOUND", False),
        ("http://127.0.0.1:9", "", "KEY_MISSING", False),
        ("127.0.0.1:9", "k", "SETTINGS_INVALID", False),
    ],
)
def test_what_keeps_a_command_from_the_api_has_a_code_and_all_fields(
    monkeypatch: pytest.MonkeyPatch, url: str, key: str, code: str, retryable: bool
) -> None:
    monkeypatch.setenv("MENS_API_URL", url)
    monkeypatch.setenv("MENS_API_KEY", key)
    result = runner.invoke(app, ["jobs", "list", "--json"])
    error = json.loads(result.stdout)["error"]
    assert (result.exit_code, set(error)) == (1, FIELDS)
    assert (error["code"], error["retryable"], error["remedy"] in error["message"]) == (code, retryable, False)
    shown = runner.invoke(app, ["jobs", "list"])
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert shown.stderr == f"error: {code}: {error['message']} {error['remedy']}\n"


def test_keys() -> None:
    migrate(Settings().database_url)
    created = runner.invoke(app, ["keys", "create", "alice"])
    assert created.output.splitlines()[-1].startswith("mens-")
    key_id = created.output.split()[0]
    assert "alice" in runner.invoke(app, ["keys", "list"]).output
    (listed,) = json.loads(runner.invoke(app, ["keys", "list", "--json"]).output)
    assert (listed["id"], listed["name"], created.output.splitlines()[-1] in str(listed)) == (key_id, "alice", False)
    assert "revoked" in runner.invoke(app, ["keys", "revoke", key_id]).output
    assert runner.invoke(app, ["keys", "revoke", "key-none"]).exit_code == 1


@pytest.mark.parametrize("command", [["retention"], ["up"]])
def test_invalid_setting_is_named(home: Path, command: list[str]) -> None:
    environment = {"PATH": os.environ["PATH"], "MENS_HOME": str(home), "MENS_RETAIN_RUN_DAYS": "soon"}
    program = [sys.executable, "-m", "cli.main", *command]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "SETTINGS_INVALID: MENS_RETAIN_RUN_DAYS" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ("plan nofile.jsonl --model mens-tiny", "file"),
        ("plan", "file"),
        ("data check {file} --seq-len 2", "seq_len"),
        ("plan {file} --model mens-tiny --vram-gb nan", "vram_gb"),
        ("plan {file} --model mens-tiny --vram-gb inf", "vram_gb"),
        ("data check {file} --bogus", "bogus"),
        ("bogus", None),
    ],
)
def test_wrong_call_is_json_where_json_was_wanted(tmp_path: Path, arguments: str, param: str | None) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a", "response": "b"}\n')
    result = runner.invoke(app, [*arguments.format(file=file).split(), "--json"])
    error = json.loads(result.stdout)["error"]
    assert (result.exit_code, error["code"], error["param"]) == (2, "REQUEST_INVALID", param)
    assert error["message"]
    assert set(error) == FIELDS
    assert error["remedy"].startswith("See `mens")
    for plain in ([], ["--", "--json"]):
        result = runner.invoke(app, [*arguments.format(file=file).split(), *plain])
        assert (result.exit_code, result.stdout) == (2, "")


def test_error_that_no_command_expects_is_json_too(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["mens", "status", "--json"])
    monkeypatch.setattr("cli.commands.status.find_all", lambda *_, **__: int("x"))
    with pytest.raises(SystemExit) as ended:
        main()
    error = json.loads(capsys.readouterr().out)["error"]
    assert (ended.value.code, error["code"]) == (1, "INTERNAL_ERROR")
    assert error["message"].startswith("ValueError: ")
    assert set(error) == FIELDS


def test_command_that_needs_more_than_the_client_names_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ModuleNotFoundError("No module named 'supervisor'", name="supervisor.options")

    monkeypatch.setattr(sys, "argv", ["mens", "status", "--json"])
    monkeypatch.setattr("cli.commands.status.find_all", fail)
    with pytest.raises(SystemExit) as ended:
        main()
    error = json.loads(capsys.readouterr().out)["error"]
    assert (ended.value.code, error["code"], error["retryable"]) == (1, "PROGRAM_FAILED", False)
    assert error["message"] == "This command needs the Python package supervisor, which is not installed here."
    assert "standalone" in error["remedy"]


@pytest.mark.parametrize("kind", [IsADirectoryError, NotADirectoryError, PermissionError])
def test_path_that_cannot_be_used_is_named(kind: type[OSError], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    numbers = {IsADirectoryError: 21, NotADirectoryError: 20, PermissionError: 13}

    def fail(*_: Any, **__: Any) -> None:
        raise kind(numbers[kind], "no", "rows/train.jsonl.partial", None, "rows/train.jsonl")

    monkeypatch.setattr(sys, "argv", ["mens", "status", "--json"])
    monkeypatch.setattr("cli.commands.status.find_all", fail)
    with pytest.raises(SystemExit) as ended:
        main()
    error = json.loads(capsys.readouterr().out)["error"]
    assert (ended.value.code, error["code"], error["param"]) == (1, "PATH_INVALID", "rows/train.jsonl")


@pytest.mark.parametrize("variable", ["MENS_HOME", "MENS_CATALOG_PATH"])
def test_setting_whose_path_cannot_be_used_is_named(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    """A file where a folder is needed, and a folder where a file is."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("MENS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(variable, str(tmp_path / "file" if variable == "MENS_HOME" else tmp_path))
    monkeypatch.setattr(sys, "argv", ["mens", "base", "list", "--json"])
    with pytest.raises(SystemExit):
        main()
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["param"]) == ("PATH_INVALID", variable)
    assert error["message"].startswith(f"{variable}: ")
