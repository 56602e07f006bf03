"""alpha/rank · B·A, computed so that every machine gets the same bits.

A product of matrices is a sum per element, and a BLAS library orders that sum by thread count and processor. Here each
factor is cut into two parts of so few bits that every product and every sum of the parts is exact in float64, whatever
the order (the error-free splitting of Ozaki, Ogita, Oishi and Rump, "Error-free transformations of matrix
multiplication by using fast routines of matrix multiplication and its applications", Numerical Algorithms 59, 2012).
The parts that are dropped are below 2⁻⁴⁰ of the largest product of an element, less than the rounding of any dtype that
weights are stored in.
"""

from __future__ import annotations

import math

import numpy as np
import torch

FLOAT64_BITS = 53


class ScaledProduct:
    """``scale · left @ right`` in float64, some rows at a time.

    Args:
        left: [m, r].
        right: [r, n].
        scale: alpha / rank.
    """

    def __init__(self, left: torch.Tensor, right: torch.Tensor, scale: float) -> None:
        # The two smaller products are computed as one of twice the inner size.
        bits = (FLOAT64_BITS - math.ceil(math.log2(2 * max(left.shape[1], 1)))) // 2
        self._scale = scale
        left_high, left_low = split(left.double(), bits, dim=1)
        right_high, right_low = split(right.double(), bits, dim=0)
        self._high = left_high, right_high
        self._low = torch.cat((left_high, left_low), dim=1), torch.cat((right_low, right_high), dim=0)

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """Return rows ``start`` to ``stop`` of the scaled product, float64 [stop - start, n]."""
        product = self._high[0][start:stop] @ self._high[1]
        # Two kernels each, never a fused multiply-add: processors differ in whether that rounds once or twice.
        product.add_(self._low[0][start:stop] @ self._low[1])
        return product.mul_(self._scale)


def split(matrix: torch.Tensor, bits: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the upper and the next ``bits`` bits of each element, counted from the largest element along ``dim``.

    Args:
        matrix: float64, finite.
        dim: the inner dimension of the product.

    Returns:
        Two float64 matrices of that shape; ``matrix`` differs from their sum by at most 2^(1 - 2·bits) of that largest
        element.
    """
    # x < 2^exponent for every x along dim, so x / unit is an integer of at most `bits` bits once rounded.
    _, exponent = np.frexp(matrix.abs().amax(dim=dim, keepdim=True).numpy())
    # NumPy's, because torch's ldexp computes powers of two in float32.
    unit, finer = (torch.from_numpy(np.ldexp(1.0, exponent - less)) for less in (bits, 2 * bits))
    high = torch.round(matrix / unit).mul_(unit)
    low = torch.round((matrix - high) / finer).mul_(finer)
    return high, low
