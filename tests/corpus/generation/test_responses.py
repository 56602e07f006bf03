"""The store of responses: written responses are found after a kill, and a disk fault leaves no incomplete line."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from corpus.generation.responses import ResponseStore, StoredResponse
from shared.errors import Unavailable


def response(number: int, text: str = "an answer") -> StoredResponse:
    return StoredResponse(key=f"{number:064x}", name="helper", text=text, prompt_tokens=3)


def test_responses_are_found_again(tmp_path: Path) -> None:
    with ResponseStore(tmp_path) as store:
        assert store.get(response(1).key) is None
        for number in range(100):
            store.add(response(number, f"an answer {number}\n"))
        assert store.get(response(7).key) == response(7, "an answer 7\n")
    with ResponseStore(tmp_path) as store:
        assert len(store) == 100
        assert response(99).key in store
        assert [one.text for one in store] == [f"an answer {number}\n" for number in range(100)]


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_half_a_line_is_cut_off(tmp_path: Path, cut: int) -> None:
    with ResponseStore(tmp_path) as store:
        store.add(response(1))
        store.add(response(2))
    file = tmp_path / "responses-00000.jsonl"
    os.truncate(file, file.stat().st_size - cut)
    with ResponseStore(tmp_path) as store:
        assert [one.key for one in store] == [response(1).key]
        store.add(response(3))
    with ResponseStore(tmp_path) as store:
        assert [one.key for one in store] == [response(1).key, response(3).key]


def test_a_damaged_response_is_requested_again_and_the_others_are_kept(tmp_path: Path) -> None:
    with ResponseStore(tmp_path) as store:
        for number in range(3):
            store.add(response(number))
    file = tmp_path / "responses-00000.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + b"\0" * (len(lines[1]) - 1) + b"\n" + lines[2])
    with ResponseStore(tmp_path) as store:
        assert [one.key for one in store] == [response(0).key, response(2).key]


def test_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corpus.generation.responses.SEGMENT_BYTES", 1_000)
    for begin in (0, 50):
        with ResponseStore(tmp_path) as store:
            for number in range(begin, begin + 50):
                store.add(response(number))
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("*.jsonl"))]
    assert len(sizes) > 10
    assert max(sizes) <= 1_000
    with ResponseStore(tmp_path) as store:
        assert [one.key for one in store] == [response(number).key for number in range(100)]


def test_many_threads(tmp_path: Path) -> None:
    with ResponseStore(tmp_path) as store:
        threads = [
            threading.Thread(target=lambda begin: [store.add(response(begin + n)) for n in range(50)], args=(50 * t,))
            for t in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(store.get(response(number).key) for number in range(400))
    with ResponseStore(tmp_path) as store:
        assert len(store) == 400


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ResponseStore(tmp_path) as store:
        store.add(response(1))
        write = os.write

        def full(descriptor: int, data: bytes) -> int:
            write(descriptor, data[:10])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("corpus.generation.responses.os.write", full)
        with pytest.raises(Unavailable) as caught:
            store.add(response(2))
        assert caught.value.code == "STORAGE_FULL"
        monkeypatch.setattr("corpus.generation.responses.os.write", write)
        store.add(response(3))
        assert store.get(response(3).key) == response(3)
    with ResponseStore(tmp_path) as store:
        assert [one.key for one in store] == [response(1).key, response(3).key]
