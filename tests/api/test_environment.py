"""The API's environment, made from its own lock file alone, has no GPU library and starts the API.

`make test` only reads the lock file.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.locks import pins

ROOT = Path(__file__).resolve().parents[2]
GPU_STACK = ("torch", "transformers", "peft", "bitsandbytes", "vllm", "triton")
SCRIPT = f"""
import importlib.util, sys
found = [name for name in {GPU_STACK!r} if importlib.util.find_spec(name)]
assert not found, found
from api.main import create_app
from api.migrate import migrate
from api.settings import ApiSettings
settings = ApiSettings(home=sys.argv[1])
migrate(settings.database_url)
app = create_app(settings)
import api.__main__
assert not sys.modules.keys() & {{"authlib", "joserfc"}}, "single sign-on is imported where it is not configured"
print(len(app.openapi()["paths"]), "paths")
"""


@pytest.fixture(scope="module")
def api_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with `locks/api.lock` and nothing else."""
    folder = tmp_path_factory.mktemp("api") / "venv"
    uv = Path(sys.executable).with_name("uv")
    python = folder / "bin" / "python"
    if uv.exists():
        run(str(uv), "venv", "--quiet", "--python", sys.executable, str(folder))
        install = [str(uv), "pip", "install", "--quiet", "--python", str(python)]
    else:
        run(sys.executable, "-m", "venv", str(folder))
        install = [str(python), "-m", "pip", "install", "--quiet"]
    run(*install, "--no-deps", "--require-hashes", "-r", str(ROOT / "locks" / "api.lock"))
    return python


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment}, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_no_gpu_library_is_locked() -> None:
    locked = pins("api")
    assert len(locked) > 50
    assert not locked.keys() & set(GPU_STACK)


@pytest.mark.long
@pytest.mark.system
def test_api_starts_without_a_gpu_library(api_python: Path, tmp_path: Path) -> None:
    assert "paths" in run(str(api_python), "-c", SCRIPT, str(tmp_path), PYTHONPATH=str(ROOT))
