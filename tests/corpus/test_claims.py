"""Claims: of two commands, one gets the output and the other an error code; an output that cannot be written is
reported at the start.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corpus.build import build
from corpus.claims import claimed
from corpus.generation.generating import Generation
from corpus.recipe import read_recipe
from shared.errors import Code, MensError
from tests.corpus.mixing.mixes import mixed, write_rows
from tests.support.source_tables import SourceTable


def code_of(call: Callable[[], Any]) -> Code:
    with pytest.raises(MensError) as failed:
        call()
    return failed.value.code


def claim(output: Path, *, is_folder: bool = True) -> None:
    with claimed(output, is_folder=is_folder):
        pass


def test_one_of_two_has_an_output_whatever_path_names_it(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "pulled")
    with claimed(tmp_path / "pulled", is_folder=True):
        for other in ("pulled", "link", "x/../pulled"):
            assert code_of(lambda other=other: claim(tmp_path / other)) is Code.CORPUS_BUSY  # type: ignore[misc]
        claim(tmp_path / "another")
    claim(tmp_path / "pulled")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link"]


def test_folder_has_the_lock_in_it_and_goes_if_nothing_else_is_written(tmp_path: Path) -> None:
    """A volume of a container has another parent there, which may not be writable."""
    made, new = tmp_path / "made", tmp_path / "new"
    made.mkdir()
    for out in (made, new):
        with claimed(out, is_folder=True):
            assert [path.name for path in out.iterdir()] == [".lock"]
            assert code_of(lambda out=out: claim(out)) is Code.CORPUS_BUSY  # type: ignore[misc]
    assert list(tmp_path.iterdir()) == [made]
    assert not list(made.iterdir())


def test_root_is_not_an_output() -> None:
    assert code_of(lambda: claim(Path("/"))) is Code.PATH_INVALID


def test_claim_of_a_killed_process_ends_with_it(tmp_path: Path) -> None:
    output = tmp_path / "train.jsonl"
    ready, held = multiprocessing.Pipe(duplex=False)

    def hold() -> None:
        with claimed(output, is_folder=False):
            held.send(True)
            signal.pause()

    child = multiprocessing.get_context("fork").Process(target=hold)
    child.start()
    assert ready.recv()
    assert code_of(lambda: claim(output, is_folder=False)) is Code.CORPUS_BUSY
    assert child.pid
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    claim(output, is_folder=False)


@pytest.mark.parametrize(
    ("output", "is_folder"), [("folder", False), ("file", True), ("file/x", False), ("file/x", True), ("y" * 300, True)]
)
def test_output_of_another_kind_is_refused_with_its_path(tmp_path: Path, output: str, is_folder: bool) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(MensError) as failed:
        claim(tmp_path / output, is_folder=is_folder)
    assert failed.value.code is Code.PATH_INVALID
    assert str(tmp_path) in failed.value.message


def test_stages_builds_and_mixes_claim_what_they_write(tmp_path: Path) -> None:
    table = SourceTable(f"sqlite:///{tmp_path / 'desk.db'}", tmp_path / "pulled")
    table.create()
    table.add([1])
    write_rows(tmp_path / "a.jsonl", {"prompt": "q", "response": "a"})
    generation = tmp_path / "columns.yaml"
    generation.write_text("rows: 1\ncolumns: [{name: n, sampler: sequence}]\nrow: {prompt: p, response: r}\n")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("mix: {output: built.jsonl, sources: [{path: a.jsonl}]}\n")
    for name, is_folder, command in (
        ("pulled", True, table.pull),
        ("generated", True, lambda: Generation(generation).run(tmp_path / "generated", "k")),
        ("out/train.jsonl", False, lambda: mixed(tmp_path, "a.jsonl")),
        ("built.jsonl", False, lambda: list(build(read_recipe(recipe), recipe))),
        ("corpus", True, lambda: list(build(read_recipe(recipe), recipe))),
    ):
        with claimed(tmp_path / name, is_folder=is_folder):
            assert code_of(command) is Code.CORPUS_BUSY, name
        command()
