"""`mens base add --path FILE.gguf`: Mens creates the base's folder, and the catalogue records the source file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from cli.standalone import base_facts, gguf_bases
from shared.base_models.catalog import GgufOrigin, LocalSource, load_catalog
from shared.errors import ArtifactInvalid, Code
from shared.settings import Settings
from tests.support.gguf_files import write_gguf
from tests.support.tiny_base import write_base


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("MENS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(base_facts, "run_worker_program", lambda *_: None)
    return Settings()


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files that the worker's program was run on; it leaves a base."""
    files: list[str] = []

    def convert(module: str, file: str, folder: str) -> None:
        assert module == "worker.bases.gguf_base"
        files.append(file)
        write_base(Path(folder))

    monkeypatch.setattr(gguf_bases, "run_worker_program", convert)
    return files


def add(name: str, file: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["base", "add", name, "--path", str(file), *options])


def test_origin_is_in_the_catalogue(settings: Settings, conversions: list[str], tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "Tiny.GGUF")
    added = add("mine", file)
    assert (added.exit_code, conversions) == (0, [str(file)]), added.output
    assert f"reading {file}; a new GGUF file is converted" in added.stderr
    entry = load_catalog(settings.catalog_path).get("mine")
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    assert entry.gguf == GgufOrigin(file="Tiny.GGUF", sha256=sha256, stored_type="Q8_0")
    assert (entry.source, entry.license) == (LocalSource(path="bases/mine"), "mit")
    assert "config.json" in entry.digests

    assert (add("mine", file).exit_code, len(conversions)) == (0, 1), "the same file again is the same base"
    copy = add("second", file)
    assert (copy.exit_code, len(conversions)) == (1, 1)
    assert "MODEL_DUPLICATE: These files are already in the catalogue as mine." in copy.stderr
    other = add("mine", write_gguf(tmp_path / "other.gguf", template=None))
    assert (other.exit_code, "mens base remove mine" in other.stderr, len(conversions)) == (1, True, 1)


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("mine", {"split": "chatglm-bpe"}, "GGUF_UNSUPPORTED"),
        ("mine", {"architecture": "gemma2"}, "MODEL_FAMILY_UNSUPPORTED"),
        ("no name", {}, "cannot be a base"),
    ],
)
def test_refused_before_any_work(
    settings: Settings, conversions: list[str], tmp_path: Path, name: str, options: dict[str, str], code: str
) -> None:
    refused = add(name, write_gguf(tmp_path / "tiny.gguf", **options))
    assert (refused.exit_code, code in refused.stderr, conversions) == (1, True, []), refused.output
    assert not (settings.home / "bases").exists()


def test_file_that_is_missing_or_no_model(settings: Settings, conversions: list[str], tmp_path: Path) -> None:
    assert "MODEL_NOT_FOUND" in add("mine", tmp_path / "none.gguf").stderr
    (tmp_path / "bad.gguf").write_bytes(b"not a model")
    assert "GGUF_INVALID" in add("mine", tmp_path / "bad.gguf").stderr
    assert conversions == []


def test_conversion_that_fails_leaves_nothing(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: str) -> None:
        raise ArtifactInvalid(Code.GGUF_INVALID, "The weight x is missing.")

    monkeypatch.setattr(gguf_bases, "run_worker_program", fail)
    refused = add("mine", write_gguf(tmp_path / "tiny.gguf"))
    assert (refused.exit_code, "The weight x is missing." in refused.stderr) == (1, True)
    assert load_catalog(settings.catalog_path).bases == []
