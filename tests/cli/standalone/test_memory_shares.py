"""The memory of each replica: weights first, the rest in equal parts, and a part for the trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.standalone.memory_shares import GpuSettings, gpu_settings, memory_shares, roundings
from serving.launch.kv_cache import weight_bytes
from shared.base_models.catalog import (
    BaseModelEntry,
    Catalog,
    HubSource,
    LocalSource,
    TwinOf,
    load_catalog,
    save_catalog,
)
from shared.base_models.config import parse_model_config
from shared.base_models.weights import json_object
from shared.errors import Code
from shared.gpus.torch_report import TorchGpu
from shared.settings import Settings
from tests.support.tiny_base import write_base

GIB = 1 << 30


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    bases = []
    for name, width in [("small", 64), ("large", 2048)]:
        write_base(tmp_path / name, hidden_size=width)
        bases.append(BaseModelEntry(name=name, source=LocalSource(path=name), digests={"config.json": "0" * 64}))
    hub = HubSource(repo="a/b", revision="0" * 40)
    bases.append(BaseModelEntry(name="remote", source=hub, digests={"config.json": "0" * 64}))
    save_catalog(tmp_path / "catalog.json", Catalog(bases=bases))
    return Settings(home=tmp_path)


def weights(settings: Settings, name: str) -> int:
    raw = (settings.home / name / "config.json").read_bytes()
    return weight_bytes(parse_model_config(json_object(raw, name, Code.MODEL_CONFIG_INVALID)), "float32")


def test_weights_come_first_and_the_rest_is_shared_equally(settings: Settings) -> None:
    small, large = memory_shares(settings, ["small", "large"], 24 * GIB)
    assert small - weights(settings, "small") == large - weights(settings, "large")
    assert small + large == pytest.approx(0.6 * 24 * GIB, abs=2)


def test_bases_that_need_more_get_more_but_never_all(settings: Settings) -> None:
    assert sum(memory_shares(settings, ["small"] * 4, 10 * GIB)) == pytest.approx(8.002 * GIB, rel=0.01)
    assert sum(memory_shares(settings, ["small"] * 9, 10 * GIB)) <= 9 * GIB


def test_base_that_is_not_here_yet_counts_as_small(settings: Settings) -> None:
    assert memory_shares(settings, ["remote", "unknown"], 20 * GIB) == [6 * GIB, 6 * GIB]


def test_half_precision_halves_the_weights(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    full = memory_shares(settings, ["large", "remote"], 24 * GIB)
    monkeypatch.setenv("MENS_SERVING_DTYPE", "bfloat16")
    half = memory_shares(settings, ["large", "remote"], 24 * GIB)
    assert full[0] - full[1] == 2 * (half[0] - half[1]) == weights(settings, "large")


def gpu(gibibytes: int) -> TorchGpu:
    return TorchGpu(name="H100", capability=(9, 0), memory_bytes=gibibytes * GIB)


def test_one_gpu_is_shared_with_the_trainer(settings: Settings) -> None:
    found = gpu_settings(settings, ["small", "large"], [gpu(24)])
    assert found.common == {"MENS_SERVING_DEVICE": "cuda", "MENS_TRAINER_GPU_SHARE": "0.400"}
    parts = [float(one["MENS_SERVING_GPU_MEMORY_UTILIZATION"]) for one in found.replicas]
    assert sum(parts) == pytest.approx(0.6, abs=0.002)
    # Weights are held in 16 bits.
    assert parts[1] - parts[0] == pytest.approx(
        (weights(settings, "large") - weights(settings, "small")) / 2 / (24 * GIB), abs=0.002
    )


@pytest.mark.parametrize(
    ("named", "trainer", "replica"),
    [(None, "0,1", "2"), ("4,5,6,7", "4,5", "6"), ("GPU-a,GPU-b,GPU-c", "GPU-a,GPU-b", "GPU-c")],
)
def test_several_gpus_are_divided(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, named: str | None, trainer: str, replica: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    found = gpu_settings(settings, ["small", "large"], [gpu(80), gpu(80), gpu(80)])
    assert found.common == {"MENS_SERVING_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": trainer}
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found.replicas] == [replica, replica]
    assert sum(float(one["MENS_SERVING_GPU_MEMORY_UTILIZATION"]) for one in found.replicas) == pytest.approx(
        0.9, abs=0.002
    )


def test_operators_share_of_a_gpu_counts(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_SERVING_GPU_MEMORY_UTILIZATION", "0.3")
    found = gpu_settings(settings, ["small"], [gpu(80)])
    assert found.replicas == ({"MENS_SERVING_GPU_MEMORY_UTILIZATION": "0.3"},)
    assert found.trainer_share == 0.7
    monkeypatch.setenv("MENS_TRAINER_GPU_SHARE", "0.5")
    assert gpu_settings(settings, ["small"], [gpu(80)]).common["MENS_TRAINER_GPU_SHARE"] == "0.5"


def test_base_that_does_not_fit_in_16_bit_is_rounded_and_no_smaller_one(settings: Settings) -> None:
    """Fails while vLLM starts with weights that the GPU does not hold. Linear layers take one byte then, all else two."""
    size = weights(settings, "large") // 2
    memory = int((size + 4 * GIB) / 0.9) - (1 << 20)
    found = gpu_settings(settings, ["small", "large"], [TorchGpu(name="L4", capability=(8, 9), memory_bytes=memory)])
    assert [replica.get("MENS_SERVING_QUANTIZATION") for replica in found.replicas] == [None, "fp8_per_channel"]
    roomy = TorchGpu(name="L4", capability=(8, 9), memory_bytes=memory + (1 << 23))
    assert roundings(settings, ["small", "large"], roomy.memory_bytes) == [None, None]


def test_twins_are_never_rounded_and_the_operators_way_is_counted(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = load_catalog(settings.catalog_path)
    large = catalog.get("large")
    origin = TwinOf(name="large", digests=large.digests, double_quant=True)
    twin = large.model_copy(update={"name": "twin", "twin_of": origin, "digests": {"config.json": "1" * 64}})
    save_catalog(settings.catalog_path, catalog.having(twin))
    assert roundings(settings, ["twin"], GIB) == [None]
    assert roundings(settings, ["large"], GIB) == ["fp8_per_channel"]
    whole, _ = memory_shares(settings, ["large", "remote"], 24 * GIB, [None, None])
    monkeypatch.setenv("MENS_SERVING_QUANTIZATION", "mxfp4")
    rounded, rest = memory_shares(
        settings, ["large", "remote"], 24 * GIB, roundings(settings, ["large", "remote"], GIB)
    )
    assert rest < rounded < whole


def test_without_a_gpu_nothing_is_set(settings: Settings) -> None:
    assert gpu_settings(settings, ["small"], []) == GpuSettings()
