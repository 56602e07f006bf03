"""Content is on disk before its name is, and the name before the call returns: what a power cut leaves is whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shared.base_models.catalog import Catalog, load_catalog, save_catalog
from shared.durable_files import rename_durably, write_durably


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Names of the files that are flushed, and those that files are given, in order."""
    steps: list[tuple[str, str]] = []
    fsync, rename, replace = os.fsync, Path.rename, Path.replace

    def flush(descriptor: int) -> None:
        steps.append(("flush", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(Path, "rename", lambda self, to: steps.append(("name", to.name)) or rename(self, to))
    monkeypatch.setattr(Path, "replace", lambda self, to: steps.append(("name", to.name)) or replace(self, to))
    return steps


def test_file_is_flushed_before_it_is_named_and_its_folder_after(tmp_path: Path, steps: list[tuple[str, str]]) -> None:
    target = tmp_path / "new" / "state.json"
    write_durably(target, "old")
    write_durably(target, "new")
    written = ("flush", f"state.json.{os.getpid()}.tmp")
    assert steps == [written, ("name", "state.json"), ("flush", "new")] * 2
    assert target.read_text() == "new"
    assert [path.name for path in target.parent.iterdir()] == ["state.json"]


def test_all_of_a_folder_is_flushed_before_it_is_named(tmp_path: Path, steps: list[tuple[str, str]]) -> None:
    partial = tmp_path / "partial"
    (partial / "inner").mkdir(parents=True)
    for name in ("a", "inner/b"):
        (partial / name).write_text(name)
    rename_durably(partial, tmp_path / "whole")
    named = steps.index(("name", "whole"))
    assert set(steps[:named]) == {("flush", name) for name in ("a", "b", "inner", "partial")}
    assert steps[named + 1 :] == [("flush", tmp_path.name)]
    assert (tmp_path / "whole" / "inner" / "b").read_text() == "inner/b"


def test_catalogue_survives_a_power_cut(tmp_path: Path, steps: list[tuple[str, str]]) -> None:
    save_catalog(tmp_path / "catalog.json", Catalog())
    assert [kind for kind, _ in steps] == ["flush", "name", "flush"]
    assert load_catalog(tmp_path / "catalog.json") == Catalog()
