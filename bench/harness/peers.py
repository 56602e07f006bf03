"""The environments of the peers in comparisons: ``.cache/bench-venv``, as ``locks/bench.lock`` pins it, and isolated ones.

The first extends the environment that runs the bench: peers and product share one build of torch, transformers, peft
and bitsandbytes, on a CPU and on a GPU, and the lock lists only packages that the product does not need. A peer that
shares nothing with the product has a separate environment in ``.tools``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.harness.command import PeerMissing
from bench.harness.fetched_folders import fetched

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "locks" / "bench.lock"
FOLDER = ROOT / ".cache" / "bench-venv"
PYTHON = FOLDER / "bin" / "python"


def require(*modules: str) -> None:
    """Check that this environment has the modules that a bench imports.

    Raises:
        PeerMissing: it lacks a module.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise PeerMissing(f"not installed: {', '.join(missing)}. `make install` creates an environment that has it.")


def peers_python(*modules: str) -> Path:
    """Return the interpreter that has the peers; install them if the lock or this environment has changed.

    Args:
        modules: modules that the bench imports beyond the lock, e.g. ``unsloth``, which has no build for a CPU.

    Raises:
        PeerMissing: they cannot be installed, or one of ``modules`` is missing.
    """
    pins = LOCK.read_text()
    if all(_is_installed(pin) for pin in pins.split()):
        python = Path(sys.executable)
    else:
        python, stamp = PYTHON, FOLDER / "installed.txt"
        state = f"{sys.version}\n{product_modules()}\n{pins}"
        if not stamp.exists() or stamp.read_text() != state:
            _install()
            stamp.write_text(state)
    for module in modules:
        look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
        if subprocess.run([python, "-c", look], check=False).returncode:
            command = f"{sys.executable} -m pip --python {python} install {module}"
            raise PeerMissing(f"not installed: {module}. `{command}`, or leave it out of `--variants`.")
    return python


def product_modules() -> str:
    """Return the module folder of this environment; it is the same for all checkouts whose ``.venv`` links to the same
    environment.
    """
    return str(Path(sysconfig.get_path("purelib")).resolve())


def isolated_python(name: str) -> Path:
    """Return the interpreter of an environment with the packages that ``locks/{name}.lock`` pins and without the
    product; it is created once.

    Raises:
        PeerMissing: it cannot be installed.
    """
    lock = LOCK.with_name(f"{name}.lock")

    def install(folder: Path) -> None:
        venv.create(folder, symlinks=True)
        _install_into(folder / "bin" / "python", lock)

    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    return fetched(f"{name}-{digest}", install) / "bin" / "python"


def _is_installed(pin: str) -> bool:
    name, _, pinned = pin.partition("==")
    try:
        return version(name) == pinned
    except PackageNotFoundError:
        return False


def _install() -> None:
    """Recreate the environment.

    Raises:
        PeerMissing: the lock could not be installed.
    """
    print(f"installing the peers of locks/{LOCK.name} into {FOLDER}", file=sys.stderr)
    shutil.rmtree(FOLDER, ignore_errors=True)
    venv.create(FOLDER, symlinks=True)
    own = Path(sysconfig.get_path("purelib", "venv", {"base": str(FOLDER), "platbase": str(FOLDER)}))
    # Whatever the lock does not pin is imported from the environment that runs the bench.
    (own / "product.pth").write_text(product_modules())
    _install_into(PYTHON, LOCK)


def _install_into(python: Path, lock: Path) -> None:
    """Install a lock, with uv if available: it takes a tenth of pip's time.

    Raises:
        PeerMissing: uv or pip ended with an error.
    """
    uv, pip = Path(sys.executable).with_name("uv"), [sys.executable, "-m", "pip"]
    into = ["--python", str(python)]
    command = [str(uv), "pip", "install", *into] if uv.exists() else [*pip, *into, "install"]
    command += ["--no-deps", "-r", str(lock)]
    installed = subprocess.run(command, env=os.environ | _find_links(pip), capture_output=True, text=True, check=False)
    if installed.returncode:
        names = ", ".join(pin.partition("==")[0] for pin in lock.read_text().split())
        raise PeerMissing(f"not installed: {names}. `{' '.join(command)}` ended with\n{installed.stderr[-2000:]}")


def _find_links(pip: list[str]) -> dict[str, str]:
    """Return pip's package sources for uv, which does not read pip's configuration; `make install` passes them too."""
    configured = subprocess.run(
        [*pip, "config", "get", "global.find-links"], capture_output=True, text=True, check=False
    )
    links = os.environ.get("PIP_FIND_LINKS") or configured.stdout.strip()
    return {"UV_FIND_LINKS": links} if links else {}
