"""Triton's interpreter with a GPU's arithmetic in bfloat16. It cuts a number's bits off where a GPU rounds to the nearest,
ties to even; and it multiplies the bits of matrices as if they were integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest


@contextmanager
def bfloat16_as_on_a_gpu() -> Iterator[None]:
    """Replace the interpreter's conversions of numbers and its products of matrices."""
    from triton.runtime import interpreter

    product = interpreter.InterpreterBuilder.create_dot

    def rounded(data: Any, source: Any, target: Any, mode: Any) -> Any:
        if str(target) == "fp32":
            return (data.view(np.uint16).astype(np.uint32) << 16).view(np.uint32)
        assert str(target) == "bf16", target
        bits = data.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

    def multiplied(builder: Any, left: Any, right: Any, total: Any, *how: Any) -> Any:
        return product(builder, widened(left), widened(right), total, *how)

    def widened(factor: Any) -> Any:
        if str(factor.dtype.scalar) != "bf16":
            return factor
        values = rounded(factor.data, None, "fp32", None).view(np.float32)
        return interpreter.TensorHandle(values, interpreter.tl.float32)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_convert_float", rounded)
        patch.setattr(interpreter.InterpreterBuilder, "create_dot", multiplied)
        yield
