"""PyTorch's OpenMP library is preloaded once, in addition to libraries that are already preloaded."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from serving import openmp
from serving.openmp import find_openmp, preload_openmp

LOADED = "import ctypes; ctypes.CDLL(None).omp_get_max_threads(); print('loaded')"


@pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed")
def test_preloaded_library_is_in_the_process_before_any_import() -> None:
    environment = preload_openmp({})
    done = subprocess.run([sys.executable, "-c", LOADED], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "loaded"
    assert subprocess.run([sys.executable, "-c", LOADED], env={}, capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "/t/libgomp.so.1"),
        ("/x/libtcmalloc.so", "/t/libgomp.so.1:/x/libtcmalloc.so"),
        ("/y/libiomp5.so", "/y/libiomp5.so"),
    ],
)
def test_what_is_preloaded_already_stays(before: str, after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "find_openmp", lambda: Path("/t/libgomp.so.1"))
    assert preload_openmp({"LD_PRELOAD": before})["LD_PRELOAD"] == after


def test_environment_is_unchanged_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "find_openmp", lambda: None)
    assert preload_openmp({"PATH": "/bin"}) == {"PATH": "/bin"}


def test_libraries_of_both_wheels_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert find_openmp() is None
    for folder in ("torch/lib", "torch.libs"):
        library = tmp_path / folder / "libgomp-a34b3233.so.1"
        library.parent.mkdir()
        library.touch()
        assert find_openmp() == library
