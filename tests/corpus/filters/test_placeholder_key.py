"""The key of placeholders: from the environment, or created once, readable only by its owner, whatever the number of
processes.
"""

from __future__ import annotations

import stat
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from corpus.filters.placeholder_key import KEY_NAME, PlaceholderKey, find_key


def key_of(_: int) -> PlaceholderKey | None:
    return find_key(["patterns"])


def test_key_is_made_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MENS_CORPUS_KEY", raising=False)
    with ProcessPoolExecutor(4, mp_context=get_context("fork")) as executor:
        (key,) = set(executor.map(key_of, range(40)))
    assert key
    file = tmp_path / "home" / KEY_NAME
    assert key == find_key(["patterns", "./a.rules"]) == PlaceholderKey(file.read_bytes(), file)
    assert len(key.value) >= 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert str(file) in key.note
    assert [path.name for path in file.parent.iterdir()] == [KEY_NAME]


def test_environment_comes_first_and_rules_need_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MENS_CORPUS_KEY", "own")
    assert find_key(["patterns"]) == PlaceholderKey(b"own")
    assert find_key(["./people.rules"]) is None
    assert PlaceholderKey(b"own").note == ""
    assert not (tmp_path / "home").exists()
