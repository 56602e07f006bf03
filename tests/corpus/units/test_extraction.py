"""The stage extract: equal bytes for any number of processes and after kills; a hostile file affects only itself."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from corpus.keys import stage_key
from corpus.shards import ShardIndex, checked_shards, read_index
from corpus.units.extraction import SUFFIXES, Extraction
from corpus.units.records import UnitRow, read_units
from shared.checkers.contained import MAX_CHARACTERS
from shared.errors import InvalidRequest, NotFound
from shared.hashing import digest_file
from tests.support.killed_renames import each_kill

pytestmark = pytest.mark.network

ROOT = Path(__file__).resolve().parents[3]
GOOD = 'def double(value: int) -> int:\n    """Return twice the value."""\n    return 2 * value\n'
AWS_KEY = "AKIA" + "Q3EGRQ7WV5XKLMNB"
DOCUMENT = f"# Use\n\n{'A sentence about the use of it. ' * 4}\n\n```python\nprint('a block of code')\n```\n"


def extract(
    source: Path, target: Path, *languages: str, processes: int = 2, max_bytes: int = 64 << 20
) -> tuple[ShardIndex, list[UnitRow]]:
    stage = Extraction((source,), languages or ("python",), None, processes)
    key = stage_key(stage.name, stage.version, stage.parameters(), stage.inputs())
    index = stage.run(target, key, max_bytes)
    return index, [unit for unit, _ in read_units(checked_shards(target))]


def digests(folder: Path) -> dict[str, str]:
    return {path.name: digest_file(path) for path in folder.iterdir()}


def run_git(folder: Path, *arguments: str, **environment: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(
        ["git", *identity, *arguments], cwd=folder, env=os.environ | environment, check=True, capture_output=True
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with two good files and a document."""
    folder = tmp_path / "project"
    (folder / "pack").mkdir(parents=True)
    (folder / "good.py").write_text(GOOD)
    (folder / "pack" / "more.py").write_text(GOOD.replace("double", "twice"))
    (folder / "use.md").write_text(DOCUMENT)
    return folder


@pytest.mark.parametrize("max_bytes", [8_000, 64 << 20])
def test_one_two_and_seven_processes_write_the_same_bytes(tmp_path: Path, max_bytes: int) -> None:
    found = []
    for processes in (1, 2, 7):
        extract(ROOT / "shared" / "contained", tmp_path / str(processes), processes=processes, max_bytes=max_bytes)
        found.append(digests(tmp_path / str(processes)))
    assert found[0] == found[1] == found[2]
    assert (len(found[0]) > 3) == (max_bytes == 8_000)


def test_after_a_kill_at_any_rename_the_next_run_writes_the_same_bytes(tree: Path, tmp_path: Path) -> None:
    extract(tree, tmp_path / "whole")

    def program(place: Path) -> None:
        extract(tree, place / "units", processes=1)

    kills = 0
    for place in each_kill(tmp_path, program):
        kills += 1
        assert read_index(place / "units") is None
        extract(tree, place / "units")
        assert digests(place / "units") == digests(tmp_path / "whole")
    assert kills >= 3


def test_units_have_their_place_and_their_measures(tree: Path, tmp_path: Path) -> None:
    index, _ = extract(tree, tmp_path / "units", "python", "markdown")
    assert index.report == {
        "files": 3,
        "units": {"block": 1, "function": 2, "module": 2, "section": 1},
        "left_out": {},
    }
    units = {unit.name: (unit, origin) for unit, origin in read_units(checked_shards(tmp_path / "units"))}
    unit, origin = units["twice"]
    assert (unit.path, unit.first_line, unit.last_line, unit.checks) == (
        "project/pack/more.py",
        1,
        3,
        {"compiles": True},
    )
    assert (unit.docstring, unit.difficulty, unit.ast_hash) == (
        "Return twice the value.",
        1,
        units["double"][0].ast_hash,
    )
    assert origin.locator["lines"] == [1, 3]
    assert (origin.id, origin.source) == (unit.id, "code:project")
    assert units["Use"][0].kind in ("section", "block")


def test_the_place_in_a_repository_and_the_age_of_documents(tree: Path, tmp_path: Path) -> None:
    run_git(tree, "init", "-q")
    old, new = "2025-01-01T00:00:00Z", "2025-08-01T00:00:00Z"
    for date, name in ((old, "use.md"), (new, ".")):
        run_git(tree, "add", name)
        run_git(tree, "commit", "-qm", "a", GIT_COMMITTER_DATE=date, GIT_AUTHOR_DATE=date)
    index, units = extract(tree / "pack", tmp_path / "units")
    (_, origin), *_ = read_units(checked_shards(tmp_path / "units"))
    assert origin.locator["path"] == "pack/more.py"
    assert len(origin.locator["commit"]) == 40
    _, documents = extract(tree, tmp_path / "documents", "markdown")
    assert {unit.staleness for unit in documents} == {2}
    assert index.rows == len(units) == 2


HOSTILE: dict[str, tuple[bytes, str]] = {
    "deep.py": (b"x = (" + b"-\n" * 90_000 + b"1)\n", "too_complex"),
    "brackets.py": (b"(" * 5_000 + b")" * 5_000, "minified"),
    "branches.py": (b"if a:\n pass\n" + b"elif a:\n pass\n" * 12_000, "too_complex"),
    "nul.py": (b"a = 1\0\n", "not_compiling"),
    "broken.py": (b"def f(:\n", "not_compiling"),
    "outside.py": (b"return 1\n", "not_compiling"),
    "long_line.py": (b"x = '" + b"a" * 100_000 + b"'\n", "minified"),
    "large.py": (b"x = 1\n" * (MAX_CHARACTERS // 4), "too_long"),
    "huge.py": (b"#" * (5 * MAX_CHARACTERS), "too_long"),
    "latin.py": (b"# caf\xe9\n", "not_utf8"),
    "surrogate.py": (b"x = '\xed\xa0\x80'\n", "not_utf8"),
    "escape.py": (b"def f():\n    '''half \\ud800'''\n", "lone_surrogate"),
    "empty.py": (b"\n", "empty"),
    "made.py": (b"# Code generated by protoc. DO NOT EDIT.\nx = 1\n", "generated"),
    "key.py": (b"KEY = '" + AWS_KEY.encode() + b"'\n", "secret"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_counted_and_costs_no_other(tree: Path, tmp_path: Path, name: str) -> None:
    content, reason = HOSTILE[name]
    (tree / name).write_bytes(content)
    index, units = extract(tree, tmp_path / "units")
    assert index.report["left_out"] == {reason: 1}
    assert {"double", "twice"} <= {unit.name for unit in units}
    assert not any(unit.path.endswith(name) and unit.kind == "module" for unit in units if reason != "lone_surrogate")


def test_a_secret_is_in_no_file(tree: Path, tmp_path: Path) -> None:
    (tree / "key.py").write_text(f"def connect():\n    return client('{AWS_KEY}')\n\n\ndef other():\n    return 1\n")
    index, units = extract(tree, tmp_path / "units")
    assert index.report["left_out"] == {"secret": 2}
    assert "other" in {unit.name for unit in units}
    assert all(AWS_KEY.encode() not in path.read_bytes() for path in (tmp_path / "units").iterdir())


def test_links_other_projects_pipes_and_unreadable_files_are_left_out(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(GOOD.replace("double", "foreign"))
    (tree / "link.py").symlink_to(tmp_path / "other.py")
    (tree / "folder").symlink_to(tmp_path)
    (tree / "loop").symlink_to(tree)
    (tree / "gone.py").symlink_to(tmp_path / "missing.py")
    (tree / "vendor").mkdir()
    (tree / "vendor" / "theirs.py").write_text(GOOD.replace("double", "theirs"))
    (tree / ".hidden").mkdir()
    (tree / ".hidden" / "hidden.py").write_text(GOOD)
    os.mkfifo(tree / "pipe.py")
    index, units = extract(tree, tmp_path / "units")
    assert index.report["left_out"] == {"not_a_file": 1, "symlink": 4, "vendored_folder": 1}
    assert {unit.name for unit in units if unit.name} == {"double", "twice"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_unreadable_file_is_counted(tree: Path, tmp_path: Path) -> None:
    (tree / "shut.py").write_text(GOOD)
    (tree / "shut.py").chmod(0)
    index, _ = extract(tree, tmp_path / "units")
    assert index.report["left_out"] == {"unreadable": 1}


def test_files_of_tests_give_tests_only(tree: Path, tmp_path: Path) -> None:
    (tree / "test_good.py").write_text("def helper():\n    pass\n\n\ndef test_it():\n    assert helper() is None\n")
    index, units = extract(tree, tmp_path / "units")
    assert [unit.name for unit in units if unit.path.endswith("test_good.py")] == ["test_it"]
    assert index.report["left_out"] == {"test_helper": 2}


def test_a_changed_file_changes_the_key_and_a_processor_does_not(tree: Path) -> None:
    def inputs(**more: Any) -> dict[str, str]:
        return Extraction((tree,), ("python",), **more).inputs()

    before = inputs()
    assert before == inputs(processes=7)
    (tree / "good.py").write_text(GOOD + "\n")
    assert before != inputs()


def test_a_folder_that_is_missing_or_has_no_unit_has_a_code(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        extract(tree / "absent", tmp_path / "units")
    with pytest.raises(InvalidRequest, match=r"0 files end with \.sql; left out: none") as caught:
        extract(tree, tmp_path / "units", "sql")
    assert caught.value.code == "CORPUS_SOURCE_EMPTY"
    assert read_index(tmp_path / "units") is None


def test_a_language_without_a_checker_is_refused(tree: Path) -> None:
    with pytest.raises(InvalidRequest, match="No checker is installed for 'cobol'"):
        Extraction((tree,), ("cobol",))
    assert SUFFIXES["markdown"] == (".md",)


def test_golden_bytes(tree: Path, tmp_path: Path) -> None:
    """If this fails because the output was changed on purpose, raise VERSION too."""
    index, _ = extract(tree, tmp_path / "units", "python", "markdown")
    line = json.loads((tmp_path / "units" / "part-00000.jsonl").read_bytes().splitlines()[0])
    assert line["path"] == "project/use.md"
    assert (index.shards[0].sha256[:16], index.shards[0].rows) == ("8338d97c89570924", 6)
