"""Check that the numbers in an adapter's weights can be served.

A NaN or an infinity does not stay within the adapter: it gets into the keys and values that a replica keeps for all its
requests, and then every model on it responds with nothing. The same happens if finite numbers are so large that a
product overflows. So the magnitude and the scaled product of A and B are bounded too; both bounds are far above values
that training reaches. Any remaining overflow (float16 ends at 65504, which a base's own activations can come near to)
is found by the replica's own health check (`serving/middleware/self_test.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shared.base_models.weights import TensorInfo
from shared.errors import ArtifactInvalid, Code

MAX_MAGNITUDE = 1000.0
"""Largest accepted magnitude of a weight; trained LoRA weights stay below 10."""
MAX_PRODUCT = 1e6
"""Bound of the product of alpha and the largest numbers of A and B: no number of scaled B·A is larger, as alpha is the
rank times the scale. Weights below 10 satisfy it at every alpha. If gate, up and down are all adapted, the cube of this
bound enters an answer, multiplied by the square of the model's width and the width of its MLP: for the widest bases
that gives 1e37, while float32 and bfloat16 end at 3e38. A norm brings the next layer's input back to its size.
"""
LIMIT_BITS = {"F32": 0x447A0000, "F16": 0x63D0, "BF16": 0x447A}
"""The bits of `MAX_MAGNITUDE` in each type that can be served."""
CHUNK_BYTES = 4 << 20


def verify_values(path: Path, tensors: dict[str, TensorInfo]) -> dict[str, float]:
    """Check every number of a safetensors file; return each tensor's largest magnitude. Memory use is constant.

    Read as an integer and without the sign, a float's bits grow with its magnitude, and those of infinity and NaN are
    larger than all others. So one integer comparison finds every fault, in each of the types.

    Raises:
        ArtifactInvalid: ``ADAPTER_DTYPE_UNSUPPORTED`` or ``ADAPTER_VALUES_INVALID``, naming the tensor.
    """
    import numpy as np  # missing where only the control plane is installed

    magnitudes: dict[str, float] = {}
    with path.open("rb") as file:
        for name, info in tensors.items():
            if info.dtype not in LIMIT_BITS:
                raise ArtifactInvalid(
                    Code.ADAPTER_DTYPE_UNSUPPORTED,
                    f"Tensor {name} has the type {info.dtype}; an adapter's tensors must be {', '.join(LIMIT_BITS)}.",
                    remedy="Save the adapter in float32, float16 or bfloat16.",
                    param=name,
                )
            kind = np.dtype("<u4" if info.dtype == "F32" else "<u2")
            magnitude = (1 << (kind.itemsize * 8 - 1)) - 1  # all bits but the sign's
            file.seek(info.start)
            left, largest = info.size, kind.type(0)
            while left:
                bits = np.frombuffer(file.read(min(CHUNK_BYTES, left)), kind)
                left -= bits.nbytes
                largest = max(largest, (bits & magnitude).max())
                if largest > LIMIT_BITS[info.dtype]:
                    raise ArtifactInvalid(
                        Code.ADAPTER_VALUES_INVALID,
                        f"Tensor {name} holds a number that is not finite, or over {MAX_MAGNITUDE:g}.",
                        remedy="Train the adapter again with a lower learning rate; it would break its replica.",
                        param=name,
                    )
            magnitudes[name] = _as_number(largest, info.dtype)
    return magnitudes


def verify_products(pairs: Iterable[tuple[str, str]], magnitudes: Mapping[str, float], alpha: float) -> None:
    """Check that no layer's scaled product of A and B can overflow an answer.

    Args:
        pairs: the names of A and B, layer by layer.
        magnitudes: the largest magnitude in each tensor.
        alpha: the scale times the rank.

    Raises:
        ArtifactInvalid: ``ADAPTER_VALUES_INVALID``, naming the tensor B.
    """
    for a, b in pairs:
        if magnitudes[a] * magnitudes[b] * alpha > MAX_PRODUCT:
            raise ArtifactInvalid(
                Code.ADAPTER_VALUES_INVALID,
                f"Tensor {b} holds {magnitudes[b]:g}, and its A {magnitudes[a]:g}; their product times alpha {alpha:g} "
                f"is over {MAX_PRODUCT:g}.",
                remedy="Train the adapter again with a lower learning rate or alpha; it could break its replica.",
                param=b,
            )


def _as_number(bits: Any, dtype: str) -> float:
    """Return the float that has these bits; they are given as a NumPy integer."""
    import numpy as np

    if dtype == "BF16":  # NumPy lacks it: it is the upper half of a float32
        return float((bits.astype(np.uint32) << np.uint32(16)).view(np.float32))
    return float(bits.view(np.float32 if dtype == "F32" else np.float16))
