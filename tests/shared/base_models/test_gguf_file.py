"""Headers of GGUF files: read as llama.cpp's library reads them, and refused if truncated, forged or over a limit."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from gguf import GGUFReader
from hypothesis import given
from hypothesis import strategies as st

from shared.base_models import gguf_file
from shared.base_models.gguf_file import read_gguf_header
from shared.errors import ArtifactInvalid, Code
from tests.support.gguf_files import write_gguf


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf").read_bytes()


def refusal(path: Path, content: bytes) -> Code:
    path.write_bytes(content)
    with pytest.raises(ArtifactInvalid) as refused:
        read_gguf_header(path)
    assert refused.value.remedy
    assert refused.value.param == path.name
    return refused.value.code


def test_header_is_what_the_library_reads(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(sound)
    header, reader = read_gguf_header(path), GGUFReader(path)
    assert (header.architecture, header.stored_type) == ("llama", "Q8_0")
    assert header.metadata["general.license"] == "mit"
    assert {name: (tensor.elements, tensor.stored_type, tensor.size) for name, tensor in header.tensors.items()} == {
        tensor.name: (tensor.n_elements, tensor.tensor_type.name, tensor.n_bytes) for tensor in reader.tensors
    }
    assert header.metadata.keys() == {key for key in reader.fields if not key.startswith("GGUF.")}


@given(st.data())
def test_cut_file_is_refused_wherever_it_is_cut(sound: bytes, tmp_path_factory: pytest.TempPathFactory, data) -> None:
    length = data.draw(st.integers(0, len(sound) - 1))
    assert refusal(tmp_path_factory.mktemp("cut") / "cut.gguf", sound[:length]) == Code.GGUF_INVALID


@given(st.data())
def test_changed_byte_of_the_header_is_read_or_refused(
    sound: bytes, tmp_path_factory: pytest.TempPathFactory, data
) -> None:
    place = data.draw(st.integers(0, 8000))
    path = tmp_path_factory.mktemp("changed") / "changed.gguf"
    path.write_bytes(sound[:place] + bytes([sound[place] ^ data.draw(st.integers(1, 255))]) + sound[place + 1 :])
    try:
        assert read_gguf_header(path).tensors
    except ArtifactInvalid as error:
        assert error.code in (Code.GGUF_INVALID, Code.GGUF_UNSUPPORTED)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04" + bytes(100),
        b"GGUF" + struct.pack("<IQQ", 1, 1, 1),
        b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62),
        b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 9, 2**40),
        b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 0, 2**40),
        b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"a", 77),
        b"GGUF" + struct.pack("<IQQQ1sI", 3, 1, 0, 1, b"t", 2**31),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 0),
    ],
)
def test_forged_header_is_refused(content: bytes, tmp_path: Path) -> None:
    assert refusal(tmp_path / "forged.gguf", content) == Code.GGUF_INVALID


def test_header_ends_at_its_limit(sound: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_file, "MAX_HEADER_BYTES", 1000)
    assert refusal(tmp_path / "long.gguf", sound) == Code.GGUF_INVALID


def test_part_of_a_model_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "part.gguf", split__count=3)
    assert refusal(path, path.read_bytes()) == Code.GGUF_UNSUPPORTED
