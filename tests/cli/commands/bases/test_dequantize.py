"""`mens base dequantize`: the twin in the catalogue, with its own digests and its origin."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from shared.base_models.catalog import (
    BaseModelEntry,
    Catalog,
    LocalSource,
    digest_model_folder,
    load_catalog,
    save_catalog,
)
from shared.settings import Settings
from tests.support.tiny_models import RAW, save

pytestmark = pytest.mark.torch

runner = CliRunner()


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """An installation with one tiny base, `org/tiny`."""
    monkeypatch.setenv("MENS_HOME", str(tmp_path))
    folder = save(RAW["qwen3"], tmp_path / "bases" / "tiny")
    entry = BaseModelEntry(
        name="org/tiny",
        source=LocalSource(path="bases/tiny"),
        digests=digest_model_folder(folder),
        license="MIT",
        learning_rate=4e-3,
    )
    save_catalog(tmp_path / "catalog.json", Catalog(bases=[entry]))
    return Settings()


def test_twin_is_registered_next_to_its_original(settings: Settings) -> None:
    result = runner.invoke(app, ["base", "dequantize", "org/tiny"])
    assert result.exit_code == 0, result.output
    assert "MENS_SERVING_BASE=org/tiny-nf4" in result.output
    original, twin = load_catalog(settings.catalog_path).bases
    assert (twin.name, twin.license, twin.learning_rate) == ("org/tiny-nf4", "MIT", 4e-3)
    assert twin.twin_of is not None
    assert (twin.twin_of.name, twin.twin_of.digests, twin.twin_of.double_quant) == ("org/tiny", original.digests, True)
    assert twin.tuned_digest == original.digest == original.tuned_digest != twin.digest
    assert isinstance(twin.source, LocalSource)
    assert twin.digests == digest_model_folder(settings.catalog_path.parent / twin.source.path)
    assert {name for name in twin.digests if twin.digests[name] != original.digests[name]} == {"model.safetensors"}

    again = runner.invoke(app, ["base", "dequantize", "org/tiny"])
    assert (again.exit_code, "already exists" in again.output) == (1, True)
    second = runner.invoke(app, ["base", "dequantize", "org/tiny", "--as", "second"])
    assert (second.exit_code, "MODEL_DUPLICATE" in second.output) == (1, True)
    assert not (settings.home / "bases" / "second").exists()
    of_twin = runner.invoke(app, ["base", "dequantize", "org/tiny-nf4"])
    assert (of_twin.exit_code, "itself the twin of org/tiny" in of_twin.output) == (1, True)


@pytest.mark.long
def test_twin_of_another_name_and_another_quantisation(settings: Settings) -> None:
    """`tests/worker/test_dequantize.py` tests the effect of the option on the weights."""
    result = runner.invoke(app, ["base", "dequantize", "org/tiny", "--as", "plain", "--no-double-quant"])
    assert result.exit_code == 0, result.output
    plain = load_catalog(settings.catalog_path).get("plain")
    assert plain.twin_of is not None and not plain.twin_of.double_quant


@pytest.mark.parametrize("name", ["../escape", "a b", "/abs"])
def test_invalid_twin_name_makes_no_folder(settings: Settings, name: str) -> None:
    before = sorted(settings.home.rglob("*"))
    result = runner.invoke(app, ["base", "dequantize", "org/tiny", f"--as={name}"])
    assert result.exit_code == 1
    assert sorted(settings.home.rglob("*")) == before


def test_unknown_base_is_refused(settings: Settings) -> None:
    result = runner.invoke(app, ["base", "dequantize", "unknown"])
    assert (result.exit_code, "MODEL_NOT_FOUND" in result.output) == (1, True)


def test_changed_base_is_refused(settings: Settings) -> None:
    (settings.home / "bases" / "tiny" / "tokenizer.json").write_text('{"changed": true}')
    result = runner.invoke(app, ["base", "dequantize", "org/tiny"])
    assert (result.exit_code, "BASE_DIGEST_MISMATCH" in result.output) == (1, True)
    assert not (settings.home / "bases" / "org").exists()
