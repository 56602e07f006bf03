"""Whether the numbers in an adapter's weights can be served at all.

A NaN or an infinity does not stay with the adapter: it gets into the keys and values that a replica keeps for all its
requests, and then every model on it responds with nothing. The same follows from finite numbers so large that a product
overflows, so the magnitude is bounded too, far above what training reaches. What still overflows is found by the
replica's own health check (`serving/middleware/self_test.py`).
"""

from __future__ import annotations

from pathlib import Path

from shared.base_models.weights import TensorInfo
from shared.errors import ArtifactInvalid, Code

MAX_MAGNITUDE = 1000.0
"""Trained LoRA weights stay below 10; A, B and an activation of 50 multiply to less than float32's largest number."""
LIMIT_BITS = {"F32": 0x447A0000, "F16": 0x63D0, "BF16": 0x447A}
"""The bits of `MAX_MAGNITUDE` in each type that can be served."""
CHUNK_BYTES = 4 << 20


def verify_values(path: Path, tensors: dict[str, TensorInfo]) -> None:
    """Check every number of a safetensors file, with little memory whatever the file's size.

    Without its sign, a float's bits as an integer grow with its magnitude, and those of infinity and NaN are above all
    others: one comparison of integers finds all that is wrong, in any of the types.

    Raises:
        ArtifactInvalid: ``ADAPTER_DTYPE_UNSUPPORTED`` or ``ADAPTER_VALUES_INVALID``, naming the tensor.
    """
    import numpy as np  # not where the control plane is installed alone

    with path.open("rb") as file:
        for name, info in tensors.items():
            if info.dtype not in LIMIT_BITS:
                raise ArtifactInvalid(
                    Code.ADAPTER_DTYPE_UNSUPPORTED,
                    f"Tensor {name} has the type {info.dtype}; an adapter's are {', '.join(LIMIT_BITS)}.",
                    remedy="Save the adapter in float32, float16 or bfloat16.",
                    param=name,
                )
            kind = np.dtype("<u4" if info.dtype == "F32" else "<u2")
            magnitude = (1 << (kind.itemsize * 8 - 1)) - 1  # all bits but the sign's
            file.seek(info.start)
            left = info.size
            while left:
                bits = np.frombuffer(file.read(min(CHUNK_BYTES, left)), kind)
                left -= bits.nbytes
                if (bits & magnitude).max() > LIMIT_BITS[info.dtype]:
                    raise ArtifactInvalid(
                        Code.ADAPTER_VALUES_INVALID,
                        f"Tensor {name} holds a number that is not finite, or over {MAX_MAGNITUDE:g}.",
                        remedy="Train the adapter again with a lower learning rate; it would break its replica.",
                        param=name,
                    )
