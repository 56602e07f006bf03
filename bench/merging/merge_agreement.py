"""Agreement of the product's merged model with peft's: ``python -m bench.merging.merge_agreement FOLDER`` prints one line of
JSON.

FOLDER contains ``base`` and the results of two variants of ``bench/merging/merge_variants.py``, ``mens`` and
``peft-f32``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors import safe_open

CANCELLED = 1e-6


def agreement(folder: Path) -> tuple[float, int]:
    """Measure the distance of the product's values from those of peft in float32.

    Where base and adapter nearly cancel out, float32 keeps the rounding errors of the larger terms, so differences
    below a millionth of the tensor's mean magnitude do not count.

    Returns:
        the share of equal values, and the largest difference of the others in steps of bfloat16.
    """
    ours_by_name, expected, base = (_locate(folder / name) for name in ("mens", "peft-f32", "base"))
    if ours_by_name.keys() != expected.keys():
        sys.exit(f"the merged models have different tensors: {sorted(ours_by_name.keys() ^ expected.keys())[:5]}")
    equal = count = worst = 0
    for name in ours_by_name:
        ours, theirs, weight = (_tensor(located, name) for located in (ours_by_name, expected, base))
        steps = (_ordinal(ours) - _ordinal(theirs)).abs()
        equal, count = equal + int((steps == 0).sum()), count + steps.numel()
        steps[(ours.float() - theirs.float()).abs() <= CANCELLED * weight.float().abs().mean()] = 0
        worst = max(worst, int(steps.max()))
    return equal / count, worst


def _locate(folder: Path) -> dict[str, Path]:
    located: dict[str, Path] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as shard:
            located |= dict.fromkeys(shard.keys(), path)
    return located


def _tensor(located: dict[str, Path], name: str) -> torch.Tensor:
    with safe_open(located[name], "pt") as shard:
        tensor: torch.Tensor = shard.get_tensor(name)
    return tensor


def _ordinal(values: torch.Tensor) -> torch.Tensor:
    """Return the position of a bfloat16 in the order of all bfloat16 values: neighbours differ by one."""
    bits = values.view(torch.int16).to(torch.int32)
    return torch.where(bits < 0, -32768 - bits, bits)


def main() -> int:
    """Compare, and print both numbers."""
    equal, worst = agreement(Path(sys.argv[1]))
    print(json.dumps({"equal": equal, "worst": worst}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
