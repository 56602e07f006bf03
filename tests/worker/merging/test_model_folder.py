"""A merged folder: W + alpha/rank · B·A rounded once, every other tensor unchanged, the same bytes on every machine."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig

from shared.base_models.weights import INDEX, read_folder_tensors
from shared.errors import ArtifactInvalid, Code
from shared.hashing import digest_file
from shared.tokenization.tokenizer import Tokenizer
from tests.support.merge_inputs import (
    CONV1D,
    LINEAR,
    NORM,
    POSITIONS,
    SCALAR,
    SHAPES,
    SHARDS,
    WIDE,
    MergeInputs,
    load_folder,
)
from tests.support.template_families import FAMILIES, make_base
from tests.support.waiting import eventually
from worker.checkpoints.folders import adopt_shards
from worker.merging import model_folder
from worker.training.model.nf4 import through_nf4

FIRST, SECOND = SHARDS


def test_a_merged_weight_is_the_true_sum_rounded_once(inputs: MergeInputs, tmp_path: Path) -> None:
    inputs.merge(tmp_path / "model")
    base, merged = inputs.base_tensors(), load_folder(tmp_path / "model")
    for key in SHAPES:
        true = base[key].double() + inputs.delta(key)
        assert torch.equal(merged[key], true.float().bfloat16()), key
        assert not torch.equal(merged[key], base[key])


def test_what_has_no_adapter_is_copied(inputs: MergeInputs, tmp_path: Path) -> None:
    inputs.merge(tmp_path / "model")
    base, merged = inputs.base_tensors(), load_folder(tmp_path / "model")
    assert all(torch.equal(merged[key], base[key]) for key in (NORM, POSITIONS, SCALAR))
    assert read_folder_tensors(tmp_path / "model") == read_folder_tensors(inputs.base)
    for name in (INDEX, "config.json", "tokenizer.json"):
        assert (tmp_path / "model" / name).read_bytes() == (inputs.base / name).read_bytes()


@pytest.mark.parametrize("stored", [{"top_p": 0.5, "eos_token_id": 0}, None])
def test_a_merged_model_names_the_end_token_of_its_template(
    inputs: MergeInputs, tmp_path: Path, stored: dict[str, object] | None
) -> None:
    """Its base's config files name another, so transformers and vLLM would run past the end of an answer."""
    inputs = dataclasses.replace(inputs, base=Path(shutil.copytree(inputs.base, tmp_path / "base")))
    family = dataclasses.replace(FAMILIES["qwen3"], named={"eos_token": "<|endoftext|>"})
    make_base(inputs.base, family)
    (inputs.base / "config.json").write_text(json.dumps({"model_type": "qwen3", "pad_token_id": 7}))
    if stored is not None:
        (inputs.base / "generation_config.json").write_text(json.dumps(stored))
    before = Tokenizer.load(inputs.base)
    digests = inputs.merge(tmp_path / "model")
    written = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    assert written == {**(stored or {"pad_token_id": 7}), "eos_token_id": sorted(before.end_ids)}
    assert digests["generation_config.json"] == digest_file(tmp_path / "model" / "generation_config.json")
    after = Tokenizer.load(tmp_path / "model")
    assert after.configured_ends == after.end_ids == before.end_ids != before.configured_ends
    assert GenerationConfig.from_pretrained(tmp_path / "model").eos_token_id == sorted(before.end_ids)


def test_another_dtype_is_that_of_every_float(inputs: MergeInputs, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    inputs.merge(folder, dtype="float32")
    base, merged = inputs.base_tensors(), load_folder(folder)
    assert {key: value.dtype for key, value in merged.items() if value.dtype != torch.float32} == {
        POSITIONS: torch.int64
    }
    assert torch.equal(merged[LINEAR], (base[LINEAR].double() + inputs.delta(LINEAR)).float())
    assert torch.equal(merged[SCALAR], base[SCALAR])
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
    size = sum(value.nbytes for value in merged.values())
    assert json.loads((folder / INDEX).read_text())["metadata"]["total_size"] == size


def test_digests_are_those_of_the_files(inputs: MergeInputs, tmp_path: Path) -> None:
    digests = inputs.merge(tmp_path / "model")
    assert digests == {path.name: digest_file(path) for path in (tmp_path / "model").iterdir()}


def test_the_weights_of_training_are_merged_into(inputs: MergeInputs, tmp_path: Path) -> None:
    inputs.merge(tmp_path / "model", quantised={LINEAR})
    base, merged = inputs.base_tensors(), load_folder(tmp_path / "model")
    seen = through_nf4(base[LINEAR], True)
    assert not torch.equal(seen, base[LINEAR])
    assert torch.equal(merged[LINEAR], (seen.double() + inputs.delta(LINEAR)).float().bfloat16())
    assert torch.equal(merged[WIDE], (base[WIDE].double() + inputs.delta(WIDE)).float().bfloat16())


MERGE = """
import sys
import worker.libraries  # first, as every program does: with it the others are imported faster
from pathlib import Path
from tests.support.merge_inputs import made_inputs
print(sorted(made_inputs(Path(sys.argv[1])).merge(Path(sys.argv[2])).items()))
"""
OTHER_MACHINE = {
    "OMP_NUM_THREADS": "2",
    "PYTHONHASHSEED": "7",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "MKL_CBWR": "COMPATIBLE",
}


@pytest.mark.long
def test_other_processors_threads_and_folders_write_the_same_bytes(inputs: MergeInputs, tmp_path: Path) -> None:
    """As every value is the true sum rounded once: :func:`test_a_merged_weight_is_the_true_sum_rounded_once`."""
    command = [sys.executable, "-c", MERGE, str(inputs.base.parent), str(tmp_path / "model")]
    done = subprocess.run(
        command, env=os.environ | OTHER_MACHINE, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == str(sorted(inputs.merge(tmp_path / "here").items()))


@pytest.mark.parametrize("elements", [1, 33, 1000])
def test_how_much_is_computed_at_a_time_changes_nothing(
    inputs: MergeInputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elements: int
) -> None:
    whole = inputs.merge(tmp_path / "whole", dtype="float32", quantised={LINEAR})
    monkeypatch.setattr(model_folder, "PIECE_ELEMENTS", elements)
    assert inputs.merge(tmp_path / "model", dtype="float32", quantised={LINEAR}) == whole


class MergeKilled(Exception):
    """Replaces the signal."""


def killed_after(shard: int, inputs: MergeInputs, target: Path, key: str) -> None:
    """Merge, and end once this many shards are written."""

    def stop(done: int, of: int) -> None:
        assert of == len(SHARDS)
        if done == shard:
            raise MergeKilled

    with pytest.raises(MergeKilled):
        model_folder.FolderMerge(inputs.base, inputs.adapter, inputs.manifest, target).run(key, stop)


KILLED = """
import sys, time
import worker.libraries  # first, as every program does: with it the others are imported faster
from pathlib import Path
from tests.support.merge_inputs import made_inputs
from worker.merging.model_folder import FolderMerge
from worker.merging.shards import ShardWriter

inputs, write = made_inputs(Path(sys.argv[1])), ShardWriter.write_tensor

def told(done, of):
    print(done, flush=True)
    # From here on so slow that the signal comes in the middle of a shard.
    ShardWriter.write_tensor = lambda *arguments: (write(*arguments), time.sleep(60))

FolderMerge(inputs.base, inputs.adapter, inputs.manifest, Path(sys.argv[2])).run("a", told)
"""


def test_a_merge_killed_in_a_shard_continues_after_the_last_whole_one(inputs: MergeInputs, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(inputs.base.parent), str(tmp_path / "model")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "1"
        partial = tmp_path / "model" / f"{SECOND}.partial"
        eventually(partial.exists, what="the second shard is begun")
        process.kill()
    assert process.returncode == -signal.SIGKILL
    before = (tmp_path / "model" / FIRST).stat().st_mtime_ns
    assert partial.exists() and not partial.with_suffix("").exists()
    whole = inputs.merge(tmp_path / "whole" / "model")
    assert inputs.merge(tmp_path / "model", key="a") == whole
    assert (tmp_path / "model" / FIRST).stat().st_mtime_ns == before
    assert {path.name for path in (tmp_path / "model").iterdir()} == whole.keys()


def test_the_next_attempt_takes_the_whole_shards_over(inputs: MergeInputs, tmp_path: Path) -> None:
    earlier, run_dir = tmp_path / "attempt-0001", tmp_path / "attempt-0002"
    killed_after(1, inputs, earlier / "model", "a")
    assert adopt_shards(earlier, run_dir) == 1
    assert adopt_shards(tmp_path / "attempt-0000", tmp_path / "attempt-0003") == 0
    shard = run_dir / "model" / FIRST
    assert shard.samefile(earlier / "model" / FIRST)
    before = shard.stat().st_ino
    assert inputs.merge(run_dir / "model", key="a") == inputs.merge(tmp_path / "whole" / "model")
    assert shard.stat().st_ino == before
    assert not (earlier / "model" / SECOND).exists()


@pytest.mark.parametrize("damage", ["another merge's", "changed since"])
def test_stored_values_that_cannot_be_trusted_are_written_again(
    inputs: MergeInputs, tmp_path: Path, damage: str
) -> None:
    whole = inputs.merge(tmp_path / "whole" / "model")
    killed_after(1, inputs, tmp_path / "model", "another" if damage == "another merge's" else "a")
    path = tmp_path / "model" / FIRST
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert inputs.merge(tmp_path / "model", key="a") == whole


def test_values_past_the_range_of_a_dtype_are_refused(inputs: MergeInputs, tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    tensors = {key: torch.full(shape, 1e30).bfloat16() for key, shape in SHAPES.items()}
    save_file(tensors, base / "model.safetensors")
    work = MergeInputs(base, inputs.adapter, inputs.manifest)
    with pytest.raises(ArtifactInvalid) as error:
        work.merge(tmp_path / "model", dtype="float16")
    assert error.value.code == Code.MERGE_NOT_FINITE
    assert not (tmp_path / "model" / "model.safetensors").exists()
    work.merge(tmp_path / "model", dtype="bfloat16")


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_base_that_is_not_finite_is_not_blamed_on_the_dtype(
    inputs: MergeInputs, tmp_path: Path, value: float
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    tensors = {key: torch.ones(shape).bfloat16() for key, shape in SHAPES.items()}
    tensors[LINEAR][0, 0] = value
    save_file(tensors, base / "model.safetensors")
    with pytest.raises(ArtifactInvalid) as error:
        MergeInputs(base, inputs.adapter, inputs.manifest).merge(tmp_path / "model", dtype="float32")
    assert (error.value.code, error.value.param) == (Code.MERGE_NOT_FINITE, LINEAR)
    assert "base" in error.value.message and "Another dtype does not help" in error.value.remedy


def test_a_weight_of_another_dtype_is_refused(inputs: MergeInputs, tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    tensors = {key: torch.ones(shape).bfloat16() for key, shape in SHAPES.items()}
    save_file(tensors | {LINEAR: torch.ones(SHAPES[LINEAR], dtype=torch.int8)}, base / "model.safetensors")
    with pytest.raises(ArtifactInvalid) as error:
        MergeInputs(base, inputs.adapter, inputs.manifest).merge(tmp_path / "model")
    assert (error.value.code, error.value.param) == (Code.MERGE_DTYPE, LINEAR)


def test_a_transposed_layer_is_merged_the_way_it_is_stored(inputs: MergeInputs, tmp_path: Path) -> None:
    inputs.merge(tmp_path / "model", dtype="float32")
    lora = load_file(inputs.adapter / "adapter_model.safetensors")
    stem = f"base_model.model.{CONV1D.removesuffix('.weight')}"
    x = torch.randn(4, SHAPES[CONV1D][0])
    before, after = (load_folder(folder)[CONV1D].float() for folder in (inputs.base, tmp_path / "model"))
    # Conv1D computes x @ W; an adapter adds (x Aᵀ) Bᵀ.
    added = (x @ lora[f"{stem}.lora_A.weight"].T) @ lora[f"{stem}.lora_B.weight"].T * (7 / 5)
    torch.testing.assert_close(x @ after, x @ before + added, atol=1e-3, rtol=1e-4)
