"""NF4 in NumPy, written from the papers, as a reference for bitsandbytes.

Levels and blocks: Dettmers et al., "QLoRA" (arXiv 2305.14314, appendix E and §3); the 8-bit code of the scales: Dettmers et al., "8-bit
Optimizers via Block-wise Quantization" (arXiv 2110.02861, §2.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

LEVELS = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
        -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    dtype=np.float32,
)  # fmt: skip
SCALE_BLOCK = 256
"""Number of scales that share a scale when the scales are quantised too."""


@dataclass(frozen=True)
class Quantised:
    """A matrix in NF4: the level of each element, and the scale of each block of elements in row-major order."""

    codes: NDArray[np.uint8]
    scales: Floats
    shape: tuple[int, ...]
    block: int

    def dequantised(self, scales: Floats | None = None) -> Floats:
        """Levels times scales, in the matrix's shape; ``scales`` replaces the scales if they were quantised."""
        values = LEVELS[self.codes].reshape(-1, self.block) * (self.scales if scales is None else scales)[:, None]
        return values.reshape(self.shape)


def quantise(matrix: Floats, block: int) -> Quantised:
    """Scale each block by its largest magnitude (1 for a block of zeros) and take each element's nearest level.

    Raises:
        ValueError: the elements do not fill blocks.
    """
    if matrix.size % block:
        raise ValueError(f"{matrix.size} elements are no whole number of blocks of {block}")
    blocks = matrix.reshape(-1, block)
    scales = np.abs(blocks).max(axis=1)
    scales = np.where(scales == 0, np.float32(1), scales)
    distance = np.abs((blocks / scales[:, None]).reshape(-1, 1) - LEVELS)
    return Quantised(distance.argmin(axis=1).astype(np.uint8), scales, matrix.shape, block)


def dynamic_code() -> Floats:
    """The 256 values of the signed dynamic 8-bit type: seven decades of linear fractions, zero, and one."""
    values = [0.0, 1.0]
    for decade in range(7):
        bounds = np.linspace(0.1, 1, 2**decade + 1)
        means = (bounds[:-1] + bounds[1:]) / 2 * 10.0 ** (decade - 6)
        values += [*means, *-means]
    return np.array(sorted(values), dtype=np.float32)


def double_quantised(scales: Floats) -> Floats:
    """Scales quantised to 8 bits and back: the mean is subtracted, and each value is rounded to the dynamic code, in
    blocks of 256.
    """
    mean = scales.mean(dtype=np.float32)
    rest, code = scales - mean, dynamic_code()
    back = np.empty_like(rest)
    for start in range(0, len(rest), SCALE_BLOCK):
        part = rest[start : start + SCALE_BLOCK]
        largest = np.abs(part).max()
        back[start : start + SCALE_BLOCK] = (
            code[np.abs(part[:, None] / largest - code).argmin(axis=1)] * largest if largest else 0
        )
    found: Floats = back + mean
    return found


def original_double_quantised(scales: Floats) -> Floats:
    """Scales quantised to 8 bits and back as in the original: linear, an integer about 128 times largest / 127."""
    factor = np.abs(scales).max() / np.float32(127)
    codes = np.clip(np.rint(scales / factor) + 128, 0, 255)
    found: Floats = ((codes - 128) * factor).astype(np.float32)
    return found
