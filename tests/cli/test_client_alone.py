"""The client alone: a wheel with the extra `cli` in a separate environment, as `uv tool install` and pipx create it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.tiers import TIERS

pytestmark = pytest.mark.network

ROOT = Path(__file__).resolve().parents[2]
ABSENT = ("torch", "transformers", "vllm", "fastapi", "sqlalchemy", "celery", "supervisor")
LOAD_ALL = f"""
import importlib.util
from cli.lazy_commands import load
from cli.main import PLACES
lacking = []
for place in PLACES:
    try:
        load(place)
    except ModuleNotFoundError:
        lacking.append(place.name)
print(lacking, [name for name in {ABSENT!r} if importlib.util.find_spec(name)])
"""


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MENS_", "PYTHON"))}
    return subprocess.run(
        [str(word) for word in command],
        env=environment | variables, cwd=variables.get("HOME"), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def must_run(*command: str | Path, **variables: str) -> str:
    done = run(*command, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mens as a wheel; built from a copy, because setuptools writes into the folder of the source."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in TIERS:
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps")
    must_run(*pip, "--no-build-isolation", "--wheel-dir", folder, folder / "source")
    return next(folder.glob("mens-*.whl"))


def test_wheel_has_the_files_of_the_console(wheel: Path) -> None:
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "api" / "console").rglob("*") if path.is_file()}
    assert "api/console/index.html" in files
    assert files <= set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def client(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment that has the wheel, the extra `cli`, and the locked versions."""
    folder = tmp_path_factory.mktemp("client")
    uv, requirement, lock = Path(sys.executable).with_name("uv"), f"{wheel}[cli]", ROOT / "locks" / "cpu.lock"
    if uv.exists():
        places = {"UV_TOOL_DIR": str(folder / "tools"), "UV_TOOL_BIN_DIR": str(folder / "bin")}
        must_run(
            uv, "tool", "install", "--quiet", "--python", sys.executable, "--constraints", lock, requirement, **places
        )
        return folder / "tools" / "mens" / "bin"
    must_run(sys.executable, "-m", "venv", folder / "mens")
    must_run(folder / "mens/bin/python", "-m", "pip", "install", "--quiet", "--constraint", lock, requirement)
    return folder / "mens" / "bin"


def test_all_commands_but_two_are_there_without_gpu_library_or_server(client: Path, tmp_path: Path) -> None:
    assert must_run(client / "python", "-c", LOAD_ALL, HOME=str(tmp_path)) == "['up', 'demo'] []\n"
    assert must_run(client / "mens", "--version", HOME=str(tmp_path)).startswith("mens ")
    assert "migrate" in must_run(client / "mens", "--help", HOME=str(tmp_path))
    assert "inventory" in must_run(client / "mens", "migrate", "openai", "--help", HOME=str(tmp_path))


def test_offline_check_and_the_api_work(client: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    shutil.copy(ROOT / "examples" / "support.jsonl", rows)
    assert json.loads(must_run(client / "mens", "data", "check", rows, "--json", HOME=str(tmp_path)))
    address = {"MENS_API_URL": "http://127.0.0.1:9", "MENS_API_KEY": "mens-x", "HOME": str(tmp_path)}
    done = run(client / "mens", "models", "--json", **address)
    assert json.loads(done.stdout)["error"]["code"] == "API_UNAVAILABLE"


def test_command_of_a_whole_installation_says_what_it_lacks(client: Path, tmp_path: Path) -> None:
    done = run(client / "mens", "up", HOME=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("error: PROGRAM_FAILED: This command needs the Python package ")
