"""PyTorch's OpenMP library, loaded before all others in vLLM's processes on a CPU.

If another OpenMP library is loaded first, for example the system's by vLLM's extension, PyTorch computes on one core
only (vllm-project/vllm#27369). vLLM sets ``LD_PRELOAD`` only for a new interpreter. The launch sets it for the server,
so that it also applies if the engine is a fork of the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

PRELOAD = "LD_PRELOAD"
LIBRARIES = ("libgomp", "libomp", "libiomp")
"""Prefixes of the file names of OpenMP libraries; the one that PyTorch usually includes comes first."""


def preload_openmp(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with PyTorch's OpenMP library preloaded, if PyTorch has one and no OpenMP library is
    preloaded yet.
    """
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
