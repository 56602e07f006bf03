"""PyTorch's OpenMP library, loaded before all others in vLLM's processes on a CPU.

A second OpenMP library in the process, such as the system's that vLLM's extension may load first, would leave PyTorch
with one core (vllm-project/vllm#27369). vLLM sets ``LD_PRELOAD`` only for a new interpreter; here the launch sets it,
so that the engine may also be a fork of the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

PRELOAD = "LD_PRELOAD"
LIBRARIES = ("libgomp", "libomp", "libiomp")
"""Prefixes of the file names of OpenMP libraries; the one that PyTorch usually has comes first."""


def preload_openmp(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment that preloads PyTorch's OpenMP library, if PyTorch has one and no other is preloaded."""
    library = None if preloads_openmp(environment) else find_openmp()
    if library is None:
        return dict(environment)
    present = environment.get(PRELOAD, "")
    return {**environment, PRELOAD: f"{library}:{present}" if present else str(library)}


def preloads_openmp(environment: Mapping[str, str]) -> bool:
    """Return true if an environment preloads an OpenMP library."""
    return any(name in environment.get(PRELOAD, "") for name in LIBRARIES)


def find_openmp() -> Path | None:
    """Return the path of PyTorch's own OpenMP library, without importing PyTorch."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    folders = (package.with_name("torch.libs"), package / "lib")
    return next(
        (path for name in LIBRARIES for folder in folders for path in sorted(folder.glob(f"{name}*.so*"))), None
    )
