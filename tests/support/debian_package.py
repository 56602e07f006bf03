"""Debian packages whose programs the tests run: downloaded by apt, which checks Debian's signature, and unpacked
without being installed.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SECONDS = 120


def unpack_debian_package(package: str, folder: Path) -> None:
    """Unpack a package into a folder, in the version of this machine's Debian."""
    if shutil.which("apt-get") is None:
        pytest.fail(f"{package} comes as a Debian package, through apt-get")
    if _run("apt-get", "download", package, folder=folder).returncode:
        _run("apt-get", "update", folder=folder)  # a machine that is new knows no packages
        done = _run("apt-get", "download", package, folder=folder)
        assert done.returncode == 0, f"apt-get cannot download {package}:\n{done.stderr}"
    (archive,) = folder.glob("*.deb")
    done = _run("dpkg-deb", "--extract", str(archive), str(folder), folder=folder)
    assert done.returncode == 0, done.stderr
    archive.unlink()


def _run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
