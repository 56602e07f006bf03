"""Numbers of an adapter that would break the replica that loads them."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from shared.artifacts import tensor_values
from shared.artifacts.tensor_values import LIMIT_BITS, MAX_MAGNITUDE, MAX_PRODUCT, verify_products, verify_values
from shared.base_models.weights import DTYPE_BITS, read_tensors
from shared.contract.sections import MAX_ALPHA
from shared.errors import ArtifactInvalid, Code

BITS = {
    "F32": {"zero": 0, "-0": 0x80000000, "1": 0x3F800000, "least": 1, "limit": 0x447A0000, "-limit": 0xC47A0000,
            "over": 0x447A0001, "-over": 0xC47A0001, "inf": 0x7F800000, "-inf": 0xFF800000, "nan": 0x7FC00000,
            "signalling nan": 0x7F800001, "-nan": 0xFFFFFFFF},
    "F16": {"zero": 0, "-0": 0x8000, "1": 0x3C00, "least": 1, "limit": 0x63D0, "-limit": 0xE3D0, "over": 0x63D1,
            "-over": 0xE3D1, "inf": 0x7C00, "-inf": 0xFC00, "nan": 0x7E00, "signalling nan": 0x7C01, "-nan": 0xFFFF},
    "BF16": {"zero": 0, "-0": 0x8000, "1": 0x3F80, "least": 1, "limit": 0x447A, "-limit": 0xC47A, "over": 0x447B,
             "-over": 0xC47B, "inf": 0x7F80, "-inf": 0xFF80, "nan": 0x7FC0, "signalling nan": 0x7F81, "-nan": 0xFFFF},
}  # fmt: skip
SOUND = {"zero", "-0", "1", "least", "limit", "-limit"}


def write(path: Path, dtype: str, *tensors: NDArray[np.unsignedinteger]) -> Path:
    """A safetensors file of these bit patterns; its tensors are called 0, 1, ..."""
    header, position = {}, 0
    for number, bits in enumerate(tensors):
        offsets = [position, position := position + bits.nbytes]
        header[str(number)] = {"dtype": dtype, "shape": [bits.nbytes * 8 // DTYPE_BITS[dtype]], "data_offsets": offsets}
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + b"".join(bits.tobytes() for bits in tensors))
    return path


def refusal(path: Path) -> ArtifactInvalid:
    with pytest.raises(ArtifactInvalid) as caught:
        verify_values(path, read_tensors(path))
    return caught.value


@pytest.mark.parametrize(("dtype", "value"), [(dtype, value) for dtype, values in BITS.items() for value in values])
def test_every_kind_of_number(tmp_path: Path, dtype: str, value: str) -> None:
    kind = np.uint32 if dtype == "F32" else np.uint16
    bits = np.zeros(100, kind)
    bits[-1] = BITS[dtype][value]
    path = write(tmp_path / "a.safetensors", dtype, np.zeros(7, kind), bits, np.zeros(3, kind))
    if value in SOUND:
        verify_values(path, read_tensors(path))
    else:
        error = refusal(path)
        assert (error.code, error.param) == (Code.ADAPTER_VALUES_INVALID, "1")


@pytest.mark.parametrize("dtype", sorted(DTYPE_BITS.keys() - LIMIT_BITS.keys()))
def test_other_types_are_refused(tmp_path: Path, dtype: str) -> None:
    error = refusal(write(tmp_path / "a.safetensors", dtype, np.zeros(DTYPE_BITS[dtype], np.uint8)))
    assert error.code is Code.ADAPTER_DTYPE_UNSUPPORTED
    assert dtype in error.message


def test_the_limit_is_the_same_number_in_each_type() -> None:
    f32 = np.float32(MAX_MAGNITUDE).view(np.uint32)
    f16 = np.float16(MAX_MAGNITUDE).view(np.uint16)
    assert {"F32": f32, "F16": f16, "BF16": f32 >> 16} == LIMIT_BITS


@pytest.mark.parametrize(("dtype", "least"), [("F32", 2.0**-149), ("F16", 2.0**-24), ("BF16", 2.0**-133)])
def test_the_largest_magnitude_is_reported(tmp_path: Path, dtype: str, least: float) -> None:
    kind = np.uint32 if dtype == "F32" else np.uint16
    numbers = [["zero", "least"], ["1", "zero", "-0"], ["1", "-limit"], []]
    tensors = [np.array([BITS[dtype][name] for name in names], kind) for names in numbers]
    path = write(tmp_path / "a.safetensors", dtype, *tensors)
    assert verify_values(path, read_tensors(path)) == {"0": least, "1": 1.0, "2": 1000.0, "3": 0.0}


@pytest.mark.parametrize(("a", "b", "alpha"), [(1000.0, 1000.0, 4096), (1000.0, 1000.0, 2), (20.0, 13.0, 4096)])
def test_numbers_that_multiply_to_too_much_are_refused(a: float, b: float, alpha: int) -> None:
    with pytest.raises(ArtifactInvalid, match="alpha") as caught:
        verify_products([("sound.a", "sound.b"), ("A", "B")], {"A": a, "B": b, "sound.a": 0.1, "sound.b": 0.1}, alpha)
    assert (caught.value.code, caught.value.param) == (Code.ADAPTER_VALUES_INVALID, "B")


def test_weights_that_training_reaches_pass_at_every_alpha() -> None:
    verify_products([("A", "B")], {"A": 10.0, "B": 10.0}, MAX_ALPHA)
    verify_products([("A", "B")], {"A": 1000.0, "B": 0.1}, MAX_ALPHA)


@pytest.mark.parametrize(("product", "is_finite"), [(MAX_PRODUCT, True), (MAX_MAGNITUDE**2 * MAX_ALPHA, False)])
def test_the_largest_product_cannot_overflow_the_widest_base(product: float, is_finite: bool) -> None:
    """Every number of B·A is the largest, with the sign that makes the answer of gate, up and down largest; Llama 3.1 405B's sizes."""
    width, mlp_width, layers, norm = 16_384, 53_248, 126, 50.0  # no channel of a norm's output is mostly over 50
    with np.errstate(over="ignore"):
        gate = np.float32(product) * np.float32(width) * np.float32(norm)
        residual = np.float32(product) * np.float32(mlp_width) * gate * gate * np.float32(layers)
    assert np.isfinite(residual) == is_finite


def test_a_large_file_takes_little_memory(tmp_path: Path) -> None:
    bits = np.zeros(24 << 20, np.uint16)
    bits[-1] = BITS["BF16"]["nan"]
    path = write(tmp_path / "a.safetensors", "BF16", bits)
    del bits
    tensors = read_tensors(path)
    tracemalloc.start()
    with pytest.raises(ArtifactInvalid):
        verify_values(path, tensors)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * tensor_values.CHUNK_BYTES
