"""Mistakes of new users: each message says what is wrong and what to do, and no command ends with a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from shared.base_models.catalog import BaseModelEntry, Catalog, LocalSource, digest_model_folder, save_catalog
from tests.support.cli_installation import CliInstallation
from tests.support.tiny_base import write_base

pytestmark = pytest.mark.network

ROW = {"prompt": "Where is the key?", "response": "Under the mat."}
FILES = {
    "my.jsonl": "".join(json.dumps(ROW | {"prompt": f"Question {number}?"}) + "\n" for number in range(40)),
    "three.jsonl": (json.dumps(ROW) + "\n") * 3,
    "array.json": json.dumps([ROW] * 40),
    "names.jsonl": (json.dumps({"frage": "Wo?", "antwort": "Da."}) + "\n") * 40,
    "table.csv": "frage,antwort\n" + "Wo?,Da.\n" * 40,
}
NAME_COLUMNS = "-o rows.jsonl --columns QUESTION=prompt,ANSWER=response"


@pytest.mark.parametrize(
    ("line", "variables", "words"),
    [
        ("train mine.jsonl --model tiny", {}, ["'mine.jsonl' does not exist"]),
        ("train array.json --model tiny", {}, ["one JSON array", "mens data convert array.json -o rows.jsonl"]),
        ("train names.jsonl --model tiny", {}, ["`frage`, `antwort`", f"mens data convert names.jsonl {NAME_COLUMNS}"]),
        ("train table.csv --model tiny", {}, ["is a table", f"mens data convert table.csv {NAME_COLUMNS}"]),
        ("train my.jsonl --model tinny", {}, ["MODEL_NOT_FOUND", "it has: tiny", "--model tiny"]),
        ("plan my.jsonl --model tiny --epochs abc", {}, ["Invalid value for '--epochs': 'abc' is not a whole number."]),
        ("plan my.jsonl --model tiny --learning-rate high", {}, ["'--learning-rate': 'high' is not a number."]),
        ("plan my.jsonl --model tiny --vram-gb -1", {}, ["'--vram-gb': '-1' is less than 0.001"]),
        ("jobs list --state gone", {}, ["'gone' is not one of"]),
        ("train my.jsonl --model tiny --epoch 3", {}, ["Did you mean --epochs?", "nothing was uploaded"]),
        ("trian my.jsonl", {}, ["Did you mean 'train'?"]),
        ("plan three.jsonl --model tiny", {}, ["has 3 rows; 100 or more is advised"]),
        ("jobs list", {"MENS_API_KEY": "mens-wrong"}, ["KEY_INVALID", "MENS_API_KEY", "mens keys create NAME"]),
        ("jobs list", {"MENS_API_KEY": None}, ["MENS_API_KEY"]),
        ("chat helper hi", {}, ["MODEL_NOT_FOUND", "mens models"]),
        ("jobs list", {"MENS_API_URL": None}, ["is not running", "Start it with `mens up"]),
        ("jobs list", {"MENS_API_URL": None, "MENS_HOME": "elsewhere"}, ["contains no installation", "MENS_HOME"]),
        ("jobs list", {"MENS_API_URL": "http://127.0.0.1:9"}, ["API_UNAVAILABLE", "http://127.0.0.1:9"]),
    ],
)
def test_a_first_users_mistake_is_named_with_the_way_out(
    installation: CliInstallation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    variables: dict[str, str | None],
    words: list[str],
) -> None:
    (work := tmp_path / "work").mkdir()
    monkeypatch.chdir(work)
    for name, content in FILES.items():
        (work / name).write_text(content)
    folder = write_base(tmp_path / "bases" / "tiny")
    entry = BaseModelEntry(name="tiny", source=LocalSource(path=str(folder)), digests=digest_model_folder(folder))
    save_catalog(installation.services.settings.catalog_path, Catalog(bases=[entry]))
    for name, value in variables.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, line.split(), env={"COLUMNS": "300"})
    said = " ".join(result.output.split())
    assert [word for word in words if word not in said] == [], result.output
    assert result.exit_code == (2 if "Usage:" in said else 0 if line.startswith("plan") else 1)
    assert isinstance(result.exception, SystemExit | None)
