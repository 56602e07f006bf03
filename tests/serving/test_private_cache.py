"""Each process has its own cache folder as long as it lives, and the next process takes the folder over."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.private_cache import PrivateCache
from serving.settings import ServingSettings

HOLD = """
import sys, time
from pathlib import Path
from serving.private_cache import PrivateCache
cache = PrivateCache(Path(sys.argv[1]), keep=lambda name: True)
(cache.folder / "kept").mkdir()
(cache.folder / "dropped").mkdir()
print(cache.folder, flush=True)
time.sleep(60)
"""


@pytest.fixture
def other(tmp_path: Path):
    """Another process that holds a folder: the folder's path, and the call that kills the process."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert process.stdout
    folder = Path(process.stdout.readline().strip())

    def kill() -> None:
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    yield folder, kill
    kill()
    process.stdout.close()


def test_folder_is_held_until_its_process_dies(tmp_path: Path, other: tuple[Path, Callable[[], None]]):
    folder, kill = other
    mine = PrivateCache(tmp_path, keep=lambda name: False)
    assert mine.folder != folder
    assert (folder / "dropped").is_dir()
    mine.close()
    kill()
    after = PrivateCache(tmp_path, keep=lambda name: name == "kept")
    assert after.folder == folder
    assert [path.name for path in sorted(folder.iterdir())] == [".lock", "kept"]
    after.close()


@pytest.mark.parametrize("name", ["file", "folder", "link", "nothing"])
def test_remove_of_any_kind_of_entry(tmp_path: Path, name: str):
    cache = PrivateCache(tmp_path / "cache", keep=lambda name: True)
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (cache.folder / "file").write_text("x")
    (cache.folder / "folder" / "deep").mkdir(parents=True)
    (cache.folder / "link").symlink_to(tmp_path / "elsewhere")
    cache.remove(name)
    left = {".lock", "file", "folder", "link"} - {name}
    assert {path.name for path in cache.folder.iterdir()} == left
    assert (tmp_path / "elsewhere" / "deep").is_dir()
    cache.close()


def test_default_cache_folder(tmp_path: Path):
    fields = {"home": tmp_path, "serving_base": "tiny"}
    assert ServingSettings(**fields).serving_cache_dir == tmp_path / "serving-cache"
    assert ServingSettings(**fields, serving_cache_dir="/disk").serving_cache_dir == Path("/disk")
