"""Contained processes: kept for the next page, confined, and ended when idle or when a template does not end."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from api.data_view import readers
from api.data_view.readers import DataSource, FileReaders
from shared.errors import Code, InvalidRequest
from shared.sandbox.landlock import abi_version
from tests.support.tiny_base import write_base

ALL = {"after": 0, "limit": 20, "only": "all", "seq_len": None, "method": None}
ENDLESS = """{% if messages[0].content == "slow" %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "base")


def source(folder: Path, base: Path | None, *prompts: str) -> DataSource:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt, "response": "b"}) + "\n" for prompt in prompts))
    return DataSource(path, base)


def test_process_is_kept_for_the_next_page_and_ended_when_idle(tmp_path: Path, base: Path) -> None:
    pool, wanted = FileReaders(), source(tmp_path, base, "a", "b")
    assert [row["line"] for row in pool.rows(wanted, ALL)["data"]] == [1, 2]
    [child] = pool._idle.values()
    assert [row["line"] for row in pool.rows(wanted, ALL | {"after": 1})["data"]] == [2]
    assert [*pool._idle.values()] == [child]
    pool.end_idle(0.0)
    assert not child.process.is_running()
    assert not pool._idle


def test_template_that_does_not_end_is_ended(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = base / "chat_template.jinja"
    template.write_text(ENDLESS + template.read_text())
    monkeypatch.setattr(readers, "ROWS_SECONDS", 1.0)
    pool, wanted = FileReaders(), source(tmp_path, base, "slow", "quick")
    with pytest.raises(InvalidRequest) as refused:
        pool.rows(wanted, ALL)
    assert refused.value.code is Code.DATA_VIEW_FAILED
    assert not pool._idle
    monkeypatch.setattr(readers, "ROWS_SECONDS", 30.0)
    assert pool.rows(wanted, ALL | {"after": 1})["data"][0]["trained"]
    pool.end_idle(0.0)


def test_base_without_a_template_is_refused_by_its_code(tmp_path: Path, base: Path) -> None:
    (base / "chat_template.jinja").unlink()
    for ask in (FileReaders().rows, FileReaders().report):
        with pytest.raises(InvalidRequest) as refused:
            ask(source(tmp_path, base, "a"), ALL)
        assert refused.value.code is Code.TEMPLATE_UNSUPPORTED


@pytest.mark.skipif(not abi_version(), reason="this kernel has no Landlock")
def test_process_reads_no_file_but_its_own(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    pool, wanted = FileReaders(), source(tmp_path / "own", None, "a")
    (tmp_path / "other").write_text("secret")
    pool.rows(wanted, ALL)
    # The file is replaced by a link to one that the process was not started for.
    wanted.path.unlink()
    wanted.path.symlink_to(tmp_path / "other")
    [child] = pool._idle.values()
    with pytest.raises(InvalidRequest):
        child.ask({"rows": ALL}, 30.0)
    pool.end_idle(0.0)


def test_file_that_was_fetched_again_gets_a_new_process(tmp_path: Path) -> None:
    pool, wanted = FileReaders(), source(tmp_path, None, "a")
    pool.rows(wanted, ALL)
    shutil.copy(wanted.path, tmp_path / "copy")
    (tmp_path / "copy").replace(wanted.path)
    assert pool.rows(wanted, ALL)["data"]
    pool.end_idle(0.0)


def test_surplus_processes_are_ended(tmp_path: Path) -> None:
    pool = FileReaders()
    children: list[Any] = []
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        pool.rows(source(tmp_path / name, None, "a"), ALL)
        children += [child for child in pool._idle.values() if child not in children]
    assert [child.process.is_running() for child in children] == [False, True, True]
    pool.end_idle(0.0)


def test_pages_share_one_timer(tmp_path: Path) -> None:
    pool, others = FileReaders(), set(threading.enumerate())
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        wanted = source(tmp_path / name, None, "a")
        for _ in range(5):
            pool.rows(wanted, ALL)
    assert sum(isinstance(thread, threading.Timer) for thread in set(threading.enumerate()) - others) == 1
    pool.end_idle(0.0)


def test_timer_ends_each_process_when_it_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "IDLE_SECONDS", 1.0)
    pool, children = FileReaders(), list[Any]()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        pool.rows(source(tmp_path / name, None, "a"), ALL)
        children += [child for child in pool._idle.values() if child not in children]
        time.sleep(0.5)
    deadline = time.monotonic() + 10
    while pool._timer and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [child.process.is_running() for child in children] == [False, False]
    assert not pool._idle
