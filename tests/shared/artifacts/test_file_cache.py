"""Local copies: limited in size, verified, and never removed while they are in use."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.artifacts.file_cache import ABANDONED_SECONDS, INCOMING_PREFIX, FileCache
from shared.errors import ArtifactInvalid, Code
from tests.support.builders import at_once


class Origin:
    """Where files come from; counts how often."""

    def __init__(self) -> None:
        self.fetched = 0

    def open(self, cache: FileCache, content: bytes, *, verify: bool = False, sent: bytes | None = None):
        def fetch(target: Path) -> None:
            self.fetched += 1
            target.write_bytes(content if sent is None else sent)

        return cache.file(digest(content), lambda: len(content), fetch, verify=verify)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def use(origin: Origin, cache: FileCache, content: bytes, at: int | None = None) -> None:
    """Use a file; ``at`` sets when, in seconds of the epoch."""
    with origin.open(cache, content) as path:
        assert path.read_bytes() == content
    if at is not None and path.exists():
        os.utime(path, (at, at))


def kept(cache: FileCache) -> set[str]:
    return {path.name for path in cache.folder.iterdir()}


@pytest.fixture
def origin() -> Origin:
    return Origin()


@pytest.fixture
def make(tmp_path: Path) -> Callable[[int], FileCache]:
    return lambda max_bytes: FileCache(tmp_path / "cache", max_bytes)


def test_file_is_fetched_once(origin: Origin, make: Callable[[int], FileCache]) -> None:
    for _ in range(3):
        use(origin, make(100), b"content")
    assert origin.fetched == 1


def test_content_is_on_disk_before_the_copy_gets_its_name(
    origin: Origin, make: Callable[[int], FileCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[bytes, bool]] = []
    cache = make(100)

    def note(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((path.read_bytes(), (cache.folder / digest(b"content")).exists()))

    monkeypatch.setattr(os, "fsync", note)
    use(origin, cache, b"content")
    use(origin, cache, b"content")
    assert synced == [(b"content", False)], "after a power cut, an empty file could have the name of its content"


def test_copy_that_was_not_used_for_longest_goes_first(origin: Origin, make: Callable[[int], FileCache]) -> None:
    cache = make(25)
    use(origin, cache, b"a" * 10, at=1)
    use(origin, cache, b"b" * 10, at=2)
    use(origin, cache, b"a" * 10, at=3)
    use(origin, cache, b"c" * 10)
    assert kept(cache) == {digest(b"a" * 10), digest(b"c" * 10)}


def test_copy_in_use_stays_beyond_the_bound(origin: Origin, make: Callable[[int], FileCache]) -> None:
    cache = make(15)
    with origin.open(cache, b"a" * 10) as used:
        os.utime(used, (1, 1))
        with origin.open(cache, b"b" * 10):
            assert kept(cache) == {digest(b"a" * 10), digest(b"b" * 10)}
        assert used.read_bytes() == b"a" * 10
    assert sum(path.stat().st_size for path in cache.folder.iterdir()) <= 15


def test_file_larger_than_the_bound_is_there_while_it_is_used(origin: Origin, make: Callable[[int], FileCache]) -> None:
    cache = make(0)
    use(origin, cache, b"large")
    assert kept(cache) == set()


def test_copy_that_another_process_uses_stays(origin: Origin, make: Callable[[int], FileCache]) -> None:
    cache = make(15)
    use(origin, cache, b"a" * 10, at=1)
    program = (
        "import sys\nfrom pathlib import Path\nfrom shared.artifacts.file_cache import FileCache\n"
        f"cache = FileCache(Path({str(cache.folder)!r}), 15)\n"
        f"with cache.file({digest(b'a' * 10)!r}, lambda: 0, print):\n"
        "    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    other = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout and other.stdout.readline() == b"held\n"
    os.utime(cache.folder / digest(b"a" * 10), (1, 1))
    use(origin, cache, b"b" * 10)
    assert digest(b"a" * 10) in kept(cache)
    # A process that is killed holds nothing.
    other.kill()
    other.communicate()
    use(origin, cache, b"c" * 10)
    assert digest(b"a" * 10) not in kept(cache)


def test_many_threads_get_whole_files_from_a_cache_that_holds_one(
    origin: Origin, make: Callable[[int], FileCache]
) -> None:
    cache = make(12)
    contents = [letter * 10 for letter in (b"a", b"b", b"c")]

    def work(number: int) -> None:
        for turn in range(8):
            use(origin, cache, contents[(number + turn) % 3])

    at_once(6, work)
    assert sum(path.stat().st_size for path in cache.folder.iterdir()) <= 12


def test_other_bytes_than_were_stored_are_refused(origin: Origin, make: Callable[[int], FileCache]) -> None:
    cache = make(100)
    with pytest.raises(ArtifactInvalid) as caught, origin.open(cache, b"content", sent=b"conten"):
        pass
    assert caught.value.code is Code.STORAGE_OBJECT_MISSING
    assert kept(cache) == set()


def test_changed_copy_is_fetched_again_where_that_is_checked(origin: Origin, make: Callable[[int], FileCache]) -> None:
    cache = make(100)
    use(origin, cache, b"content")
    (cache.folder / digest(b"content")).write_bytes(b"changed")
    with origin.open(cache, b"content", verify=True) as path:
        assert path.read_bytes() == b"content"
    assert origin.fetched == 2


def test_fetch_that_fails_leaves_nothing(make: Callable[[int], FileCache]) -> None:
    cache = make(100)

    def fail(target: Path) -> None:
        target.write_bytes(b"half")
        raise RuntimeError("connection lost")

    with pytest.raises(RuntimeError), cache.file(digest(b"content"), lambda: 7, fail):
        pass
    assert kept(cache) == set()


def test_what_a_killed_process_was_fetching_goes_a_day_later(origin: Origin, make: Callable[[int], FileCache]) -> None:
    cache = make(100)
    use(origin, cache, b"content")
    old, new = cache.folder / f"{INCOMING_PREFIX}old", cache.folder / f"{INCOMING_PREFIX}new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (old.stat().st_mtime - ABANDONED_SECONDS - 60,) * 2)
    use(origin, cache, b"content")
    assert not old.exists()
    assert new.exists()
