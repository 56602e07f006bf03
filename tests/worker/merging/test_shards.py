"""Shards: the safetensors library reads what is written, and no incomplete file has a final name."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.base_models.weights import TensorInfo, read_tensors
from shared.hashing import digest_file
from worker.merging import shards
from worker.merging.shards import ShardReader, ShardWriter

TENSORS = {"a": torch.randn(3, 5), "b": torch.randn(7).bfloat16(), "c": torch.tensor(2.5), "e": torch.empty(0, 4)}


def info(tensor: torch.Tensor) -> TensorInfo:
    dtype = {torch.float32: "F32", torch.bfloat16: "BF16"}[tensor.dtype]
    return TensorInfo(dtype, tuple(tensor.shape), size=math.prod(tensor.shape) * tensor.element_size())


def write(path: Path) -> str:
    with ShardWriter(path, {key: info(value) for key, value in TENSORS.items()}) as out:
        for value in TENSORS.values():
            out.write_tensor(value)
    return out.digest


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    assert write(tmp_path / "x.safetensors") == digest_file(tmp_path / "x.safetensors")
    found = load_file(tmp_path / "x.safetensors")
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[key], value) for key, value in TENSORS.items())


def test_what_the_library_wrote_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "COPY_BYTES", 16)
    save_file(TENSORS, tmp_path / "x.safetensors")
    stored = read_tensors(tmp_path / "x.safetensors")
    with ShardReader(tmp_path / "x.safetensors") as reader:
        assert all(torch.equal(reader.tensor(stored[key]), value) for key, value in TENSORS.items())
        assert torch.equal(reader.elements(stored["a"], 4, 9), TENSORS["a"].view(-1)[4:9])
        raw = b"".join(reader.pieces(stored["a"]))
    assert raw == TENSORS["a"].numpy().tobytes()


def test_a_shard_that_was_not_finished_does_not_have_its_name(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(OSError, match="full"), ShardWriter(path, {"a": info(TENSORS["a"])}) as out:
        out.write(b"half")
        raise OSError("the disk is full")
    assert not path.exists()
    write(path)  # over what is left of it
    assert load_file(path).keys() == TENSORS.keys()


def test_a_file_that_has_become_shorter_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write(path)
    stored = read_tensors(path)
    path.write_bytes(path.read_bytes()[:-3])
    with ShardReader(path) as reader, pytest.raises(OSError, match="before its header says"):
        for value in stored.values():
            reader.tensor(value)
