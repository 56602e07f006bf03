"""The original's merge: its numbers, its file, and each of its refusals with its code, in its order."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.artifacts.original_layout import ORIGINAL_WEIGHTS, V2_NAME, V3_NAME
from shared.base_models.weights import read_tensors
from shared.errors import Code, MensError
from shared.hashing import digest_file
from tests.support.original_adapter import ALPHA, EMBEDDING, PARTS, RANK, OriginalAdapter, make_original
from worker.merging import subset
from worker.merging.subset import SubsetMerge

HIDDEN, WIDE, VOCABULARY = 24, 40, 50
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def write_shards(folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """A base of two layers, in two shards; it needs no config, for the original's merge reads none."""
    random = torch.Generator().manual_seed(0)
    folder.mkdir()
    shapes = {"gate_proj": (WIDE, HIDDEN), "up_proj": (WIDE, HIDDEN), "down_proj": (HIDDEN, WIDE)}
    for layer, shard in enumerate((FIRST, SECOND)):
        names = {
            f"model.layers.{layer}.{part}.weight": shapes.get(part.split(".")[1], (HIDDEN, HIDDEN)) for part in PARTS
        }
        names |= {EMBEDDING: (VOCABULARY, HIDDEN)} if not layer else {"model.norm.weight": (HIDDEN,)}
        save_file(
            {name: torch.randn(shape, generator=random).to(dtype) for name, shape in names.items()}, folder / shard
        )


@pytest.fixture(params=["P", "F"])
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., tuple[OriginalAdapter, SubsetMerge]]:
    """An adapter in the original's layout, its base, and its merge."""

    def make(era: str = "F", version: int = 3, suffix: str = "", **changes: Any) -> tuple[OriginalAdapter, SubsetMerge]:
        base = tmp_path / "base"
        if not base.exists():
            write_shards(base)
        adapter = make_original(base, era, version, suffix, sizes=(VOCABULARY, HIDDEN), seed=5)
        # The head of the tied embedding is trained here: the original merged it into the embedding.
        adapter.tensors["lm_head.lora_b"] += np.float32(0.2)
        folder = replace(adapter, changes=changes).write(tmp_path / "adapter")
        meta = folder / (V2_NAME if version == 2 else V3_NAME)
        shards = (base / FIRST, base / SECOND)
        return adapter, SubsetMerge(shards, folder / ORIGINAL_WEIGHTS, meta, tmp_path / "merged.safetensors")

    return make


Made = Callable[..., tuple[OriginalAdapter, SubsetMerge]]


@pytest.mark.parametrize(("version", "suffix"), [(2, ""), (3, ".weight")])
def test_the_file_holds_the_originals_numbers_and_nothing_else(made: Made, era: str, version: int, suffix: str) -> None:
    adapter, work = made(era, version, suffix)
    merged = work.run()
    found, expected = load_file(work.output), adapter.merged_into(work.base_shards[0].parent)
    assert set(found) == set(adapter.layers.values())
    assert merged.layers == list(adapter.layers) and merged.skipped == []
    assert merged.digest == digest_file(work.output)
    before = {key: value for shard in work.base_shards for key, value in load_file(shard).items()}
    for key, value in found.items():
        assert value.dtype == torch.float32
        np.testing.assert_allclose(value.numpy(), expected[key], atol=1e-5, rtol=0)
        assert not torch.equal(value, before[key]), key
    assert sorted(path.name for path in work.output.parent.glob("merged*")) == ["merged.safetensors"]


def test_a_merged_value_is_the_true_sum_rounded_once(made: Made) -> None:
    adapter, work = made()
    work.run()
    found = load_file(work.output)
    base = {key: value for shard in work.base_shards for key, value in load_file(shard).items()}
    for logical, key in adapter.layers.items():
        a, b = (torch.from_numpy(adapter.tensors[f"{logical}.lora_{side}"]).double() for side in "ab")
        assert torch.equal(found[key], (base[key].double() + (b @ a) * (ALPHA / RANK)).float()), key


def test_pieces_and_the_order_of_shards_change_no_byte(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    _, work = made()
    digest = work.run().digest
    monkeypatch.setattr(subset, "PIECE_ELEMENTS", 7)
    other = replace(work, base_shards=work.base_shards[::-1], output=work.output.with_name("other.safetensors"))
    assert other.run().digest == digest
    save_file(
        {key: value for shard in work.base_shards for key, value in load_file(shard).items()},
        work.output.with_name("one"),
    )
    whole = replace(
        work, base_shards=(work.output.with_name("one"),), output=work.output.with_name("third.safetensors")
    )
    assert whole.run().digest == digest


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_merged_in_float32(made: Made, tmp_path: Path, dtype: torch.dtype) -> None:
    write_shards(tmp_path / "base", dtype)
    _, work = made()
    work.run()
    assert {info.dtype for info in read_tensors(work.output).values()} == {"F32"}


def test_a_transposed_layer_of_gpt2_is_merged_the_way_it_is_stored(tmp_path: Path) -> None:
    key = "h.0.mlp.c_fc.weight"
    random = torch.Generator().manual_seed(1)
    weight, a, b = (torch.randn(shape, generator=random) for shape in ((8, 20), (RANK, 8), (20, RANK)))
    save_file({key: weight}, tmp_path / "base.safetensors")
    save_file({"mid0.lora_a": a, "mid0.lora_b": b}, tmp_path / "adapter.safetensors")
    meta = OriginalAdapter({"mid0": key}, {}, 2, "", (50, 8)).sidecar()
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    SubsetMerge(
        (tmp_path / "base.safetensors",), tmp_path / "adapter.safetensors", tmp_path / "meta.json", tmp_path / "merged"
    ).run()
    torch.testing.assert_close(load_file(tmp_path / "merged")[key], weight + (b @ a).T * (ALPHA / RANK))


def test_layers_that_the_map_does_not_place_are_named(made: Made) -> None:
    adapter, work = made()
    left = {logical: key for logical, key in adapter.layers.items() if logical != "l1.q"}
    adapter, work = made(base_key_map=left)
    merged = work.run()
    assert merged.skipped == ["l1.q"] and adapter.layers["l1.q"] not in load_file(work.output)


def refusal(work: SubsetMerge) -> Code:
    with pytest.raises(MensError) as refused:
        work.run()
    assert refused.value.remedy
    assert not list(work.output.parent.glob("merged*"))
    return refused.value.code


def without_shards(work: SubsetMerge) -> SubsetMerge:
    return replace(work, base_shards=())


def with_a_missing_shard(work: SubsetMerge) -> SubsetMerge:
    return replace(work, base_shards=(*work.base_shards, work.output.with_name("nowhere.safetensors")))


def with_no_adapter(work: SubsetMerge) -> SubsetMerge:
    return replace(work, adapter=work.adapter.with_name("nowhere.safetensors"))


def with_a_pickled_adapter(work: SubsetMerge) -> SubsetMerge:
    path = work.adapter.with_name("checkpoint.BIN")
    path.write_bytes(b"\x80\x04not even pickle")
    return replace(work, adapter=path)


def with_a_pickled_shard(work: SubsetMerge) -> SubsetMerge:
    path = work.adapter.with_name("pytorch_model.bin")
    path.write_bytes(b"\x80\x04not even pickle")
    return replace(work, base_shards=(*work.base_shards, path))


def with_no_meta(work: SubsetMerge) -> SubsetMerge:
    return replace(work, meta=work.meta.with_name("nowhere.json"))


def changed(work: SubsetMerge, **fields: Any) -> SubsetMerge:
    content = json.loads(work.meta.read_bytes())
    work.meta.write_text(json.dumps(content | fields))
    return work


def mapped(work: SubsetMerge, logical: str, key: str) -> SubsetMerge:
    return changed(work, base_key_map=json.loads(work.meta.read_bytes())["base_key_map"] | {logical: key})


def with_tensors(work: SubsetMerge, change: Callable[[dict[str, torch.Tensor]], object]) -> SubsetMerge:
    tensors = load_file(work.adapter)
    change(tensors)
    save_file(tensors, work.adapter)
    return work


def with_an_integer_base(work: SubsetMerge) -> SubsetMerge:
    tensors = load_file(work.base_shards[0])
    save_file({key: value.to(torch.int8) for key, value in tensors.items()}, work.base_shards[0])
    return work


REFUSALS: list[tuple[Callable[[SubsetMerge], SubsetMerge], Code]] = [
    (without_shards, Code.MERGE_NO_BASE_SHARDS),
    (with_a_missing_shard, Code.MERGE_BASE_SHARD_NOT_FOUND),
    (with_no_adapter, Code.MERGE_ADAPTER_NOT_FOUND),
    (with_a_pickled_adapter, Code.MERGE_REJECTS_BURN_BIN),
    (with_a_pickled_shard, Code.MERGE_REJECTS_BURN_BIN),
    (with_no_meta, Code.MERGE_META_NOT_FOUND),
    (lambda work: changed(work, format="another"), Code.MERGE_META_FORMAT),
    (lambda work: changed(work, version=4), Code.MERGE_META_FORMAT),
    (lambda work: changed(work, layer_order=["elsewhere"]), Code.MERGE_META_FORMAT),
    (lambda work: mapped(work, "l0.q", "model.layers.1.self_attn.q_proj.weight"), Code.MERGE_META_FORMAT),
    (lambda work: mapped(work, "l0.q", "h.0.attn.c_attn.weight"), Code.MERGE_MIXED_FAMILIES),
    (
        lambda work: mapped(work, "l0.q", "model.language_model.layers.0.self_attn.q_proj.weight"),
        Code.MERGE_MIXED_FAMILIES,
    ),
    (lambda work: changed(work, base_digests={FIRST: "0" * 64}), Code.MERGE_BASE_DIGEST_MISMATCH),
    (
        lambda work: with_tensors(work, lambda tensors: tensors.pop("l0.q.lora_b")),
        Code.MERGE_ADAPTER_TENSOR_MISSING,
    ),
    (
        lambda work: with_tensors(work, lambda tensors: tensors.update({"l0.q.lora_a": tensors["l0.q.lora_a"].half()})),
        Code.MERGE_DTYPE,
    ),
    (with_an_integer_base, Code.MERGE_DTYPE),
    (lambda work: replace(work, base_shards=work.base_shards[:1]), Code.MERGE_BASE_KEY_NOT_FOUND),
    (lambda work: changed(work, rank=RANK + 1), Code.MERGE_SHAPE),
    (
        lambda work: with_tensors(work, lambda tensors: tensors.update({"l0.q.lora_a": torch.zeros(RANK, HIDDEN + 1)})),
        Code.MERGE_SHAPE,
    ),
    (
        lambda work: with_tensors(work, lambda tensors: tensors["l0.q.lora_a"].fill_(float("nan"))),
        Code.MERGE_NOT_FINITE,
    ),
]


@pytest.mark.parametrize(("spoil", "code"), REFUSALS)
def test_refusals(made: Made, spoil: Callable[[SubsetMerge], SubsetMerge], code: Code) -> None:
    assert refusal(spoil(made()[1])) == code


def test_right_digests_are_not_refused(made: Made, tmp_path: Path) -> None:
    write_shards(tmp_path / "base")
    digests = {name: digest_file(tmp_path / "base" / name) for name in (FIRST, SECOND)}
    made(base_digests=digests)[1].run()


def test_every_code_of_the_specification_is_among_the_refusals() -> None:
    codes = {
        "MERGE_REJECTS_BURN_BIN", "MERGE_NO_BASE_SHARDS", "MERGE_BASE_SHARD_NOT_FOUND", "MERGE_ADAPTER_NOT_FOUND",
        "MERGE_META_NOT_FOUND", "MERGE_META_FORMAT", "MERGE_MIXED_FAMILIES", "MERGE_ADAPTER_TENSOR_MISSING", "MERGE_DTYPE",
        "MERGE_SHAPE", "MERGE_BASE_KEY_NOT_FOUND", "MERGE_BASE_DIGEST_MISMATCH",
    }  # fmt: skip
    assert codes <= {str(code) for _, code in REFUSALS}


def test_checks_come_in_the_originals_order(made: Made) -> None:
    """Each fault hides those behind it; `.bin` is refused before anything is parsed."""
    _, work = made()
    shutil.copy(work.adapter, work.adapter.with_name("kept"))
    work.meta.write_text("not even JSON")
    work.adapter.write_bytes(b"no tensors")
    assert refusal(with_no_meta(with_a_pickled_adapter(work))) == Code.MERGE_REJECTS_BURN_BIN
    assert refusal(with_a_pickled_adapter(work)) == Code.MERGE_REJECTS_BURN_BIN
    assert refusal(with_no_meta(with_no_adapter(work))) == Code.MERGE_ADAPTER_NOT_FOUND
    assert refusal(with_a_missing_shard(with_no_adapter(work))) == Code.MERGE_BASE_SHARD_NOT_FOUND
    assert refusal(without_shards(with_no_adapter(work))) == Code.MERGE_NO_BASE_SHARDS
    assert refusal(work) == Code.MERGE_META_FORMAT


def test_folder_of_the_output_is_made_or_refused(made: Made, tmp_path: Path) -> None:
    _, work = made()
    in_folder = replace(work, output=tmp_path / "new" / "folder" / "merged.safetensors")
    in_folder.run()
    assert in_folder.output.is_file()
    with pytest.raises(MensError) as refused:
        replace(work, output=in_folder.output / "other.safetensors").run()
    assert (refused.value.code, refused.value.param) == (Code.REQUEST_INVALID, "output")


def test_no_file_is_overwritten(made: Made) -> None:
    _, work = made()
    taken = replace(work, output=work.base_shards[0])
    before = digest_file(taken.output)
    with pytest.raises(MensError) as refused:
        taken.run()
    assert (refused.value.code, refused.value.param) == (Code.REQUEST_INVALID, "output")
    assert digest_file(taken.output) == before
