"""Which weights `mens up` serves: the rule for `auto`, the twin that is made once, and the messages about it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cli.commands.weights
from cli.commands.weights import ServedWeights, choose_weights, find_twin, nf4_reason, this_machine, tuned_base
from shared.base_models.catalog import (
    BaseModelEntry,
    Catalog,
    LocalSource,
    TwinOf,
    load_catalog,
    save_catalog,
)
from shared.errors import Code, MensError
from shared.settings import Settings
from tests.support.base_configs import QWEN3_8B
from tests.support.pretended_gpu import MACHINES, pretend
from tests.support.tiny_models import RAW

GIB = 1 << 30


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation with two bases, of whose files only the configs are read, on a machine without a GPU that has 16 GiB."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(cli.commands.weights, "allowed_memory", lambda: 16 * GIB)
    bases = []
    for name, raw, digit in (("tiny", "qwen3", "a"), ("old", "gpt2", "b")):
        folder = tmp_path / "bases" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(RAW[raw]))
        (folder / "model.safetensors").write_bytes(bytes(100_000))
        source = LocalSource(path=f"bases/{name}")
        bases.append(BaseModelEntry(name=name, source=source, digests={"config.json": digit * 64}))
    save_catalog(tmp_path / "catalog.json", Catalog(bases=bases))
    return tmp_path


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the twins that were made; each is only put into the catalogue."""
    names: list[str] = []

    def dequantize(settings: Settings, name: str, twin: str) -> BaseModelEntry:
        catalog = load_catalog(settings.catalog_path)
        original = catalog.get(name)
        origin = TwinOf(name=name, digests=original.digests, double_quant=True)
        entry = original.model_copy(update={"name": twin, "twin_of": origin, "digests": {"config.json": "f" * 64}})
        save_catalog(settings.catalog_path, catalog.having(entry))
        names.append(twin)
        return entry

    monkeypatch.setattr(cli.commands.weights, "dequantize", dequantize)
    return names


def serve(home: Path, weights: str, *bases: str, **settings: Any) -> tuple[list[str], str]:
    """Names that are served for the bases, and the lines that were printed."""
    said: list[str] = []
    names = choose_weights(Settings(home=home, **settings), bases or ("tiny",), ServedWeights(weights), said.append)
    return names, "\n".join(said)


def test_original_is_served_where_full_precision_fits(home: Path, made: list[str]) -> None:
    assert serve(home, "auto") == (["tiny"], "")
    assert serve(home, "original", quant_base="nf4") == (["tiny"], "")
    assert made == []


def test_twin_is_served_where_jobs_train_over_nf4(home: Path, made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.commands.weights, "allowed_memory", lambda: 1 << 20)
    names, said = serve(home, "auto", "tiny", "old")
    assert (names, made) == (["tiny-nf4", "old"], ["tiny-nf4"]), "a GPT-2 model is not served with adapters"
    assert "creating tiny-nf4, the twin of tiny: once, " in said and " on the disk" in said
    assert "because full precision with full-length rows" in said
    assert "Jobs still name tiny; chats without an adapter name tiny-nf4" in said
    names, said = serve(home, "auto")
    assert (names, made, "creating" in said) == (["tiny-nf4"], ["tiny-nf4"], False)
    assert [tuned_base(Settings(home=home), name) for name in ("tiny-nf4", "tiny")] == ["tiny", "tiny"]


@pytest.mark.parametrize("memory", [None, 16 * GIB])
def test_operators_precision_decides_and_an_unknown_machine_does_not(
    home: Path, monkeypatch: pytest.MonkeyPatch, memory: int | None
) -> None:
    monkeypatch.setattr(cli.commands.weights, "allowed_memory", lambda: memory)
    tiny = load_catalog(home / "catalog.json").get("tiny")

    def reason(**settings: str) -> str | None:
        own = Settings(home=home, **settings)
        return nf4_reason(own, tiny, this_machine(own, ["tiny"]))

    assert reason() is None
    assert reason(quant_base="nf4") == "MENS_QUANT_BASE says so"


def test_requested_twin_is_made(home: Path, made: list[str]) -> None:
    assert serve(home, "twin")[0] == made == ["tiny-nf4"]
    assert serve(home, "twin", "tiny", "tiny-nf4")[0] == ["tiny-nf4"], "each once"
    assert serve(home, "original", "tiny-nf4")[0] == ["tiny-nf4"], "a twin that is named is served"


def test_twin_of_an_earlier_base_of_the_name_is_not_served(home: Path, made: list[str]) -> None:
    serve(home, "twin")
    catalog = load_catalog(home / "catalog.json")
    changed = catalog.get("tiny").model_copy(update={"digests": {"config.json": "1" * 64}})
    assert find_twin(catalog, changed) is None
    save_catalog(home / "catalog.json", catalog.having(changed))
    [name], _ = serve(home, "twin")
    assert name == made[1] == f"tiny-nf4-{changed.digest[:8]}"


def test_without_room_on_the_disk_the_original_is_served_with_a_warning(
    home: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    names, said = serve(home, "auto", quant_base="nf4")
    assert (names, made) == (["tiny"], [])
    assert said.startswith("warning: tiny is served with its original weights. The twin of tiny takes ")
    assert "1.0 KB are free" in said
    with pytest.raises(MensError) as caught:
        serve(home, "twin")
    assert caught.value.code is Code.STORAGE_FULL


def test_twin_would_be_rounded(home: Path, made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_SERVING_QUANTIZATION", "mxfp4")
    assert serve(home, "auto", quant_base="nf4")[0] == ["tiny"]
    with pytest.raises(MensError) as caught:
        serve(home, "twin")
    assert (caught.value.code, made) == (Code.SETTINGS_INVALID, [])


def test_memory_of_the_smallest_gpu_decides(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(MACHINES["two cards"], home / "gpu", monkeypatch)
    machine = this_machine(Settings(home=home), ["tiny"])
    assert (machine.device, machine.vram_bytes, machine.host_bytes) == ("cuda", 23028 << 20, 16 * GIB)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert this_machine(Settings(home=home), ["tiny"]).device == "cpu"


def test_single_gpu_is_planned_for_without_the_replicas_part(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(MACHINES["new driver"], home / "gpu", monkeypatch)
    assert this_machine(Settings(home=home), ["tiny"]).vram_bytes == int(0.4 * (24564 << 20))
    monkeypatch.setenv("MENS_TRAINER_GPU_SHARE", "0.25")
    assert this_machine(Settings(home=home), ["tiny"]).vram_bytes == 24564 << 18


def test_base_that_fits_a_gpu_only_rounded_is_said_and_has_no_twin(
    home: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(MACHINES["new driver"], home / "gpu", monkeypatch)
    (home / "bases" / "tiny" / "config.json").write_text(json.dumps(QWEN3_8B | {"num_hidden_layers": 60}))
    names, said = serve(home, "auto", quant_base="nf4")
    assert (names, made) == (["tiny"], [])
    assert "tiny is served with weights rounded to fp8, because in 16 bit it does not fit on the GPU" in said
