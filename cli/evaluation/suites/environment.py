"""The environment of lm-evaluation-harness: the packages that `locks/suites.lock` pins, in a separate folder, created
by an explicit command.

It shares nothing with ours, so that its 80 packages do not affect our versions, and our releases do not affect
benchmark results.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from shared.errors import Code, NotFound, Unavailable

LOCK = Path(__file__).resolve().parents[3] / "locks" / "suites.lock"
INSTALL_SECONDS = 900


def environment_folder(home: Path, lock: Path = LOCK) -> Path:
    """Return the folder of a lock file's environment: one folder per content of the file, so that a new lock gives a
    new environment.

    Raises:
        NotFound: ``SUITES_NOT_INSTALLED``: the lock file does not exist.
    """
    try:
        digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    except OSError as error:
        raise NotFound(
            Code.SUITES_NOT_INSTALLED,
            f"The lock file {lock} cannot be read.",
            remedy="Pass `--lock PATH`, where PATH is `locks/suites.lock` of Mens's source tree.",
            param="lock",
        ) from error
    return home / "suites" / digest[:12]


def python_of(folder: Path) -> Path:
    """Return the interpreter of an installed environment.

    Raises:
        NotFound: ``SUITES_NOT_INSTALLED``.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        raise NotFound(
            Code.SUITES_NOT_INSTALLED,
            f"lm-evaluation-harness is not installed in {folder}.",
            remedy="Run `mens eval suites install`: it fetches about 200 MB from the package index, once.",
        )
    return python


def install(folder: Path, lock: Path = LOCK) -> Path:
    """Create the environment: complete, or absent. Every file is checked against the lock's hashes.

    Returns:
        its interpreter.

    Raises:
        Unavailable: ``SUITES_INSTALL_FAILED``: the installer ended with an error, or took longer than a quarter of an hour.
    """
    if (folder / "bin" / "python").exists():
        return folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as partial:
        new = Path(partial, "new")
        venv.create(new, symlinks=True)
        _run_installer(new / "bin" / "python", lock)
        try:
            new.rename(folder)
        except OSError:
            if not folder.exists():  # otherwise another process was faster
                raise
    return folder / "bin" / "python"


def _run_installer(python: Path, lock: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    if uv.exists():
        command = [str(uv), "pip", "install", "--python", str(python), "--compile-bytecode"]
    else:
        # Our pip installs for the other interpreter; without it, the new environment's own pip is used.
        own = importlib.util.find_spec("pip") is not None
        if not own:
            subprocess.run([python, "-m", "ensurepip"], check=False, capture_output=True)
        command = [sys.executable, "-m", "pip", "--python", str(python)] if own else [str(python), "-m", "pip"]
        command += ["--disable-pip-version-check", "install"]
    command += ["--quiet", "--no-deps", "--require-hashes", "-r", str(lock)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        output, failed = done.stdout + done.stderr, done.returncode != 0
    except subprocess.TimeoutExpired:
        output, failed = f"it took longer than {INSTALL_SECONDS} s", True
    if failed:
        raise Unavailable(
            Code.SUITES_INSTALL_FAILED,
            f"`{' '.join(command)}` failed: {output.strip()[-1500:]}",
            remedy="Check that the package index can be reached, and run `mens eval suites install` again.",
        )
