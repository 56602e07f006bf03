"""Write torch's account of this machine's GPUs, as JSON on stdout: ``python torch_program.py``.

It does not open a context on a GPU, because a context takes memory, and a vLLM that measures the free memory at that
time would fail.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any


def read_torch() -> dict[str, Any]:
    """Return the fields of `shared/gpus/torch_report.py:TorchReport`."""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Torch reports some faults, such as an old driver, as a warning and not as an error.
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        gpus = [_describe(torch.cuda.get_device_properties(index)) for index in range(count)]
        kernels = torch.cuda.get_arch_list() if count else []
    warning_text = " ".join(str(warning.message) for warning in caught)
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "kernels": kernels,
        "gpus": gpus,
        "warning": " ".join(warning_text.split()),
    }


def _describe(properties: Any) -> dict[str, Any]:
    return {
        "name": properties.name,
        "capability": [properties.major, properties.minor],
        "memory_bytes": properties.total_memory,
        "uuid": f"GPU-{getattr(properties, 'uuid', '')}",
    }


if __name__ == "__main__":
    json.dump(read_torch(), sys.stdout)
