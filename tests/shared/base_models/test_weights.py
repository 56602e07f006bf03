"""Safetensors headers: those of the safetensors library are read, and every invalid one is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from shared.base_models.weights import (
    MAX_DIMENSIONS,
    MAX_HEADER_BYTES,
    TensorInfo,
    read_folder_tensors,
    read_tensors,
)
from shared.errors import ArtifactInvalid, Code

DTYPES = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "I16": np.int16, "U16": np.uint16, "F16": np.float16,
    "I32": np.int32, "U32": np.uint32, "F32": np.float32, "I64": np.int64, "U64": np.uint64, "F64": np.float64,
}  # fmt: skip


def entry(start: Any = 0, end: Any = 8, shape: Any = (2,), dtype: Any = "F32", **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end], **more}


def file_bytes(header: Any, data: bytes = b"\0" * 8, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


UNSOUND: dict[str, bytes] = {
    "empty": b"",
    "shorter than a length": b"\1\0\0",
    "length only": (1).to_bytes(8, "little"),
    "header longer than the file": file_bytes({}, b"", length=3),
    "header of 2^64 bytes": file_bytes({}, length=2**64 - 1),
    "not JSON": file_bytes(b"{nonsense"),
    "not UTF-8": file_bytes(b'{"\xff": 1}'),
    "empty header": file_bytes(b""),
    "a list": file_bytes([]),
    "a number": file_bytes(5),
    "tensor is no object": file_bytes({"a": 1}),
    "no dtype": file_bytes({"a": {"shape": [2], "data_offsets": [0, 8]}}),
    "unknown dtype": file_bytes({"a": entry(dtype="F33")}),
    "dtype is no text": file_bytes({"a": entry(dtype=["F32"])}),
    "shape is no list": file_bytes({"a": entry(shape=2)}),
    "negative shape": file_bytes({"a": entry(shape=[-2])}),
    "float shape": file_bytes({"a": entry(shape=[2.0])}),
    "three offsets": file_bytes({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 8]}}),
    "float offset": file_bytes({"a": entry(end=8.0)}),
    "negative offset": file_bytes({"a": entry(start=-8, end=0)}),
    "offsets backwards": file_bytes({"a": entry(start=8, end=0)}),
    "past the end": file_bytes({"a": entry(shape=[4], end=16)}),
    "too few bytes for the shape": file_bytes({"a": entry(shape=[1])}),
    "too many elements for the bytes": file_bytes({"a": entry(shape=[3])}),
    "shape times itself overflows": file_bytes({"a": entry(shape=[2**62, 4, 2**62])}),
    "dimension over 63 bits": file_bytes({"a": entry(0, 0, shape=[0, 2**64])}, b""),
    "dimension true": file_bytes({"a": entry(0, 4, shape=[True])}, b"\0" * 4),
    "offset false": file_bytes({"a": entry(False, 8)}),
    "dimension null": file_bytes({"a": entry(shape=[None])}),
    "dimension a text": file_bytes({"a": entry(shape=["2"])}),
    "dimension a list": file_bytes({"a": entry(shape=[[2]])}),
    "dimension with an exponent": file_bytes(b'{"a":{"dtype":"F32","shape":[2e0],"data_offsets":[0,8]}}'),
    "shape null": file_bytes({"a": entry(shape=None)}),
    "shape an object": file_bytes({"a": entry(shape={"0": 2})}),
    "dtype null": file_bytes({"a": entry(dtype=None)}),
    "dtype a number": file_bytes({"a": entry(dtype=32)}),
    "dtype in small letters": file_bytes({"a": entry(dtype="f32")}),
    "offsets null": file_bytes({"a": {"dtype": "F32", "shape": [2], "data_offsets": None}}),
    "offsets a text": file_bytes({"a": {"dtype": "F32", "shape": [2], "data_offsets": "08"}}),
    "offset null": file_bytes({"a": entry(end=None)}),
    "offset a text": file_bytes({"a": entry(end="8")}),
    "offset not a number": file_bytes({"a": entry(end=float("nan"))}),
    "offset over 64 bits": file_bytes({"a": entry(end=2**64 + 8)}),
    "metadata a list": file_bytes({"__metadata__": [], "a": entry()}),
    "metadata a text": file_bytes({"__metadata__": "pt", "a": entry()}),
    "metadata with a number": file_bytes({"__metadata__": {"format": 1}, "a": entry()}),
    "metadata with null": file_bytes({"__metadata__": {"format": None}, "a": entry()}),
    "metadata with an object": file_bytes({"__metadata__": {"format": {}}, "a": entry()}),
    "metadata with NaN": file_bytes({"__metadata__": {"format": float("nan")}, "a": entry()}),
    "half of a surrogate pair in a name": file_bytes({"a\ud800": entry()}),
    "UTF-16": file_bytes(json.dumps({"a": entry()}).encode("utf-16")),
    "byte-order mark": file_bytes(b"\xef\xbb\xbf" + json.dumps({"a": entry()}).encode()),
    "a field of a tensor twice": file_bytes(b'{"a":{"dtype":"I8","dtype":"F32","shape":[2],"data_offsets":[0,8]}}'),
    "overlapping": file_bytes({"a": entry(), "b": entry()}),
    "bytes before the first": file_bytes({"a": entry(start=8, end=16)}, b"\0" * 16),
    "bytes between": file_bytes({"a": entry(), "b": entry(start=12, end=20)}, b"\0" * 20),
    "bytes after the last": file_bytes({"a": entry()}, b"\0" * 12),
}

TENSOR = json.dumps(entry())
STRICTER: dict[str, bytes] = {
    "a tensor twice": file_bytes(f'{{"a":{TENSOR},"a":{TENSOR}}}'.encode()),
    "metadata twice": file_bytes(f'{{"__metadata__":{{"a":"b","a":"c"}},"a":{TENSOR}}}'.encode()),
    "NaN in an unknown field": file_bytes({"a": entry(more=float("nan"))}),
}
"""Refused here, whatever the library does."""


def write(folder: Path, content: bytes) -> Path:
    path = folder / "model.safetensors"
    path.write_bytes(content)
    return path


def library_takes(path: Path) -> bool:
    try:
        with safe_open(path, "np") as file:
            list(file.keys())
    except SafetensorError:
        return False
    return True


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10).filter(
            lambda s: s != "__metadata__"
        ),
        st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 4), max_size=3)),
        max_size=4,
    ),
    st.none() | st.just({"format": "pt"}),
)
def test_reads_what_the_library_writes(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str] | None
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.safetensors"
    arrays = {name: np.zeros(shape, DTYPES[dtype]) for name, (dtype, shape) in tensors.items()}
    save_file(arrays, path, metadata=metadata)
    assert read_tensors(path) == {name: TensorInfo(dtype, tuple(shape)) for name, (dtype, shape) in tensors.items()}
    with safe_open(path, "np") as file:
        names = set(file.keys())
        assert names == set(read_tensors(path))


def test_metadata_may_be_null(tmp_path: Path) -> None:
    path = write(tmp_path, file_bytes({"__metadata__": None, "a": entry()}))
    assert library_takes(path)
    assert read_tensors(path) == {"a": TensorInfo("F32", (2,))}


@pytest.mark.parametrize("name", [*UNSOUND, *STRICTER])
def test_unsound_file_is_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, (UNSOUND | STRICTER)[name])
    with pytest.raises(ArtifactInvalid) as caught:
        read_tensors(path)
    assert caught.value.code is Code.SAFETENSORS_INVALID
    assert caught.value.param == "model.safetensors"


@pytest.mark.parametrize("name", list(UNSOUND))
def test_library_refuses_the_same_files(tmp_path: Path, name: str) -> None:
    assert not library_takes(write(tmp_path, UNSOUND[name]))


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    save_file({"a": np.zeros((2, 3), np.float32), "b": np.zeros(4, np.int8)}, tmp_path / "whole.safetensors")
    whole = (tmp_path / "whole.safetensors").read_bytes()
    for length in range(len(whole)):
        with pytest.raises(ArtifactInvalid):
            read_tensors(write(tmp_path, whole[:length]))


def test_endless_nesting_is_refused(tmp_path: Path) -> None:
    # Fails while read_tensors lets json's RecursionError pass.
    with pytest.raises(ArtifactInvalid):
        read_tensors(write(tmp_path, file_bytes(b"[" * 100_000)))


def test_header_over_the_limit_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.base_models.weights.MAX_HEADER_BYTES", 10)
    with pytest.raises(ArtifactInvalid, match="at most 10 are read"):
        read_tensors(write(tmp_path, file_bytes({"a": entry()})))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 9) | st.floats() | st.sampled_from(["F32", "dtype", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "a", "__metadata__"]), inner, max_size=4)
    ),
    max_leaves=12,
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "I8"]) | json_values,
        "shape": st.lists(st.integers(0, 3), max_size=2) | json_values,
        "data_offsets": st.lists(st.integers(0, 16), min_size=2, max_size=2) | json_values,
    }
)
headers = st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), entries | json_values) | json_values
files = st.binary(max_size=80) | st.builds(file_bytes, st.binary(max_size=40) | headers, st.binary(max_size=16))


@given(files)
def test_any_bytes_are_tensors_or_invalid(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = write(tmp_path_factory.getbasetemp(), content)
    try:
        tensors = read_tensors(path)
    except ArtifactInvalid as error:
        assert error.code is Code.SAFETENSORS_INVALID
    else:
        assert all(isinstance(info, TensorInfo) for info in tensors.values())


@pytest.mark.parametrize(
    ("dimension", "count"),
    [("9" * 4300, MAX_HEADER_BYTES // 4400), ("9" * 18, MAX_HEADER_BYTES // 20), ("9" * 4300, 1)],
    ids=["as long as they may be, to the end of the header", "as many as there is room for", "one"],
)
def test_numbers_that_no_tensor_has_are_never_multiplied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dimension: str, count: int
) -> None:
    def refuse(shape: tuple[int, ...]) -> int:
        raise AssertionError(f"{len(shape)} numbers are multiplied")

    monkeypatch.setattr("math.prod", refuse)
    shape = ",".join([dimension] * count)
    raw = f'{{"bomb":{{"dtype":"F32","shape":[{shape}],"data_offsets":[0,8]}}}}'.encode()
    assert len(raw) <= MAX_HEADER_BYTES
    with pytest.raises(ArtifactInvalid, match="tensor 'bomb' has a malformed entry"):
        read_tensors(write(tmp_path, file_bytes(raw)))


def test_a_tensor_may_have_as_many_dimensions_as_numpy_gives_it(tmp_path: Path) -> None:
    save_file({"a": np.zeros((1,) * MAX_DIMENSIONS, np.float32)}, tmp_path / "model.safetensors")
    assert read_folder_tensors(tmp_path) == {"a": TensorInfo("F32", (1,) * MAX_DIMENSIONS)}


def test_folder_is_read_shard_by_shard(tmp_path: Path) -> None:
    save_file({"a": np.zeros((2, 3), np.float32)}, tmp_path / "model-1.safetensors")
    save_file({"b": np.zeros(4, np.int8)}, tmp_path / "model-2.safetensors")
    (tmp_path / "other.bin").write_bytes(b"not read")
    assert read_folder_tensors(tmp_path) == {"a": TensorInfo("F32", (2, 3)), "b": TensorInfo("I8", (4,))}
    assert read_folder_tensors(tmp_path / "nowhere") == {}


@pytest.mark.exhaustive
def test_largest_header_is_refused_quickly(tmp_path: Path) -> None:
    header = {f"model.layers.{n}.mlp.up_proj.weight": entry(8 * n, 8 * n + 8) for n in range(42_000)}
    raw = json.dumps(header).encode()
    assert MAX_HEADER_BYTES < len(raw) < 1.2 * MAX_HEADER_BYTES
    path = write(tmp_path, file_bytes(raw, b"\0" * 8 * len(header)))
    with pytest.raises(ArtifactInvalid, match="header says"):
        read_tensors(path)
    kept = {name: header[name] for name in list(header)[:30_000]}
    assert len(read_tensors(write(tmp_path, file_bytes(kept, b"\0" * 8 * len(kept))))) == 30_000
