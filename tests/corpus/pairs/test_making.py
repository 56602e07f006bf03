"""The stage pairs: every answer passes its checker, faults are reported by the checker, and equal units give equal
bytes.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from corpus.keys import stage_key
from corpus.pairs import rule as rules_interface
from corpus.pairs.making import Pairing
from corpus.pairs.rule import MIN_FORMS, wording
from corpus.pairs.rules import installed_rules
from corpus.shards import ShardIndex, checked_shards, read_index
from corpus.units.extraction import Extraction
from shared.checkers.checker import Check, Diagnostic
from shared.checkers.python_checker import PythonChecker
from shared.datasets.row_validation import decode_line
from shared.errors import InvalidRequest, NotFound
from shared.hashing import digest_file
from tests.support.killed_renames import each_kill

pytestmark = pytest.mark.network

ROOT = Path(__file__).resolve().parents[3]
FUNCTION = '''\
import math


def area(radius: float, factor: float = 1.0) -> float:
    """Return the area of a circle, multiplied by a factor that is one by default."""
    if radius < 0:
        raise ValueError("a radius is at least 0")
    squared = radius**2
    total = math.pi * squared * factor
    return total
'''
TEST = "from circles import area\n\n\ndef test_area_of_nothing_is_nothing() -> None:\n    assert area(0) == 0\n    assert area(1) > 3\n"
SCRIPT = "CREATE TABLE people (name TEXT, age INTEGER);\n-- Names of all adults, sorted.\nSELECT name FROM people WHERE age > 17 ORDER BY name;\n"
GUIDE = f"# Guide\n\n## Install\n\n{'Install it with one command and no other step. ' * 3}\n\n```sql\nSELECT count(*) FROM people\n```\n"

Row = dict[str, Any]


def extract(source: Path, target: Path, *languages: str) -> Path:
    Extraction((source,), languages).run(target, "0" * 64)
    return target


def pair(
    units: Path, target: Path, *rules: str, processes: int = 2, max_bytes: int = 64 << 20
) -> tuple[ShardIndex, list[Row]]:
    stage = Pairing((units,), rules, processes)
    index = stage.run(target, stage_key(stage.name, stage.version, stage.parameters(), stage.inputs()), max_bytes)
    return index, [json.loads(line) for path in checked_shards(target) for line in path.read_bytes().splitlines()]


def digests(folder: Path) -> dict[str, str]:
    return {path.name: digest_file(path) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Units of a project with code, a test, a script and a document."""
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "project").mkdir()
    for name, text in {
        "circles.py": FUNCTION,
        "test_circles.py": TEST,
        "people.sql": SCRIPT,
        "guide.md": GUIDE,
    }.items():
        (folder / "project" / name).write_text(text)
    return extract(folder / "project", folder / "units", "python", "sql", "markdown")


@pytest.fixture(scope="module")
def rows(units: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    """Rows of every rule, by its name."""
    target = tmp_path_factory.mktemp("rows") / "pairs"
    return {name: pair(units, target, name)[1] for name in installed_rules()}


def test_every_rule_makes_rows_that_are_training_rows(rows: dict[str, list[Row]]) -> None:
    assert {name: len(found) for name, found in rows.items()} == {
        "implement": 1, "from_docstring": 1, "explain": 1, "test_for": 1, "complete": 1, "fix": 1, "docs_qa": 2, "query": 1,
    }  # fmt: skip
    for row in (row for found in rows.values() for row in found):
        decode_line(json.dumps(row).encode())


def test_labels_are_those_of_the_design(rows: dict[str, list[Row]]) -> None:
    def label(rule: str, place: int = 0) -> list[Any]:
        row = rows[rule][place]
        return [row["category"], row["task_family"], row["lane"], row["rating"], row["response_mode"], row["origin"]]

    assert label("implement") == ["function", "synthesis", "codegen", 5, "code_only", "human"]
    assert label("from_docstring") == ["function", "synthesis", "codegen", 4, "code_only", "human"]
    assert label("explain") == ["documentation", "explanation", "codegen", 3, "prose_only", "human"]
    assert label("test_for") == ["test", "synthesis", "codegen", 4, "code_only", "human"]
    assert label("complete") == ["completion", "completion", "codegen", 3, "code_only", "human"]
    assert label("fix") == ["error_correction", "repair", "codegen", 4, "code_only", "human"]
    assert label("docs_qa") == ["documentation", "explanation", "docs_qa", 4, "prose_only", "human"]
    assert label("docs_qa", 1)[4] == "code_only"
    assert label("query") == ["sql", "synthesis", "codegen", 4, "code_only", "human"]


def test_prompt_and_answer_of_code_are_the_function(rows: dict[str, list[Row]]) -> None:
    (implement,), (complete,) = rows["implement"], rows["complete"]
    original = ast.dump(ast.parse(FUNCTION).body[1])
    for row in (implement, complete):
        begin = re.findall(r"```python\n(.*?)\n```", row["prompt"], re.DOTALL)
        code = next(block for block in begin if "def " in block)
        whole = f"{code}\n{textwrap.indent(row['response'], '    ')}"
        assert ast.dump(ast.parse(whole).body[0]) == original
    assert "total = math.pi" not in implement["prompt"]
    assert "import math" in implement["prompt"]
    (explain,) = rows["explain"]
    assert explain["response"].startswith("Return the area of a circle")
    assert explain["response"] not in explain["prompt"]


def test_an_answer_is_for_what_the_prompt_holds(rows: dict[str, list[Row]]) -> None:
    (test,), (query,) = rows["test_for"], rows["query"]
    assert "def area(" in test["prompt"]
    assert "def test_area_of_nothing_is_nothing" in test["response"]
    assert "Names of all adults, sorted." in query["prompt"]
    assert "CREATE TABLE people" in query["prompt"]
    assert query["response"].startswith("SELECT name")
    assert "Guide > Install" in rows["docs_qa"][0]["prompt"]


def faults_in(prompt: str) -> set[str]:
    return {line.removeprefix("- ") for line in prompt.split("\n") if re.match(r"- line \d+: ", line)}


def test_faults_are_those_that_the_checker_reports(rows: dict[str, list[Row]]) -> None:
    (row,) = rows["fix"]
    (broken,) = re.findall(r"```python\n(.*?)\n```", row["prompt"], re.DOTALL)
    assert faults_in(row["prompt"]) == {str(fault) for fault in PythonChecker().check(broken).diagnostics} != set()
    assert PythonChecker().check(row["response"]).compiles


def test_bytes_do_not_depend_on_processes_or_kills(units: Path, tmp_path: Path) -> None:
    for processes in (1, 2, 7):
        pair(units, tmp_path / str(processes), processes=processes, max_bytes=2_000)
    assert digests(tmp_path / "1") == digests(tmp_path / "2") == digests(tmp_path / "7")
    pair(units, tmp_path / "whole")
    kills = 0
    for place in each_kill(tmp_path, lambda place: pair(units, place / "pairs")):
        kills += 1
        assert read_index(place / "pairs") is None
        pair(units, place / "pairs")
        assert digests(place / "pairs") == digests(tmp_path / "whole")
    assert kills >= 3


@pytest.mark.parametrize("folder", ["checkers", pytest.param(".", marks=pytest.mark.long)])
def test_all_rules_over_this_repository_break_nothing(folder: str, tmp_path: Path) -> None:
    extracted = extract(ROOT / "shared" / folder, tmp_path / "units", "python")
    index, found = pair(extracted, tmp_path / "pairs")
    assert not index.report["left_out"].get("CORPUS_PAIR_BROKEN")
    assert {"implement", "from_docstring", "explain", "complete", "fix"} <= index.report["rows"].keys()
    checker = PythonChecker()
    for row in found:
        if row["category"] == "error_correction":
            blocks = re.findall(r"```python\n(.*?)\n```", row["prompt"], re.DOTALL)
            assert faults_in(row["prompt"]) == {str(fault) for fault in checker.check(blocks[-1]).diagnostics} != set()
            assert checker.check(row["response"]).compiles


def test_provenance_leads_to_the_unit(units: Path, tmp_path: Path) -> None:
    pair(units, tmp_path / "pairs", "implement")
    (line,) = (tmp_path / "pairs" / "part-00000.sources.jsonl").read_bytes().splitlines()
    origin = json.loads(line)
    assert origin["locator"]["path"] == "project/circles.py"
    assert origin["locator"]["lines"] == [4, 10]
    assert origin["checks"] == {"rule": "implement", "compiles": True}
    assert [stage.partition("@")[0] for stage in origin["stages"]] == ["extract", "pairs"]
    assert len(origin["parents"]) == 1


def test_an_answer_that_its_checker_refuses_is_not_written(
    units: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> Check:
        return Check((Diagnostic("syntax", "refused"),))

    monkeypatch.setattr("shared.checkers.contained.ContainedCheckers.check", refuse)
    index, found = pair(units, tmp_path / "pairs")
    assert {row["response_mode"] for row in found} == {"prose_only"}
    assert index.report["left_out"]["CORPUS_PAIR_BROKEN"] >= 4


def test_stubs_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        FUNCTION
        + '\n\ndef later(a, b):\n    """Do something with both values at some time."""\n    raise NotImplementedError\n'
    )
    index, found = pair(extract(tmp_path / "a.py", tmp_path / "units", "python"), tmp_path / "pairs")
    assert index.report["left_out"]["STUB"] == 1
    assert not any("later" in row["response"] for row in found)


def test_each_rule_has_eight_forms_with_the_same_fields() -> None:
    assert {"docs_code", *installed_rules()} == wording().keys()
    for name, forms in wording().items():
        assert len(set(forms)) >= MIN_FORMS, name
        needed = [set(re.findall(r"item\.(\w+)", form)) & {"code", "faults", "given", "docstring"} for form in forms]
        assert all(fields == needed[0] for fields in needed), name
    assert rules_interface.fenced("```\na\n```", "") == "````\n```\na\n```\n````"


def test_bad_calls_have_codes(units: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InvalidRequest, match="No rule is called 'implment'; the installed ones are: implement"
    ) as caught:
        Pairing((units,), ("implment",))
    assert caught.value.code == "CORPUS_RULE_UNKNOWN"
    with pytest.raises(NotFound, match="does not contain a complete output"):
        pair(tmp_path / "absent", tmp_path / "pairs")
    (tmp_path / "a.py").write_text("x = 1\n")
    with pytest.raises(InvalidRequest, match="make no rows from the units") as empty:
        pair(extract(tmp_path / "a.py", tmp_path / "units", "python"), tmp_path / "pairs")
    assert empty.value.code == "CORPUS_SOURCE_EMPTY"


def test_golden_bytes(units: Path, tmp_path: Path) -> None:
    """If this fails because the output was changed on purpose, raise VERSION too."""
    index, _ = pair(units, tmp_path / "pairs")
    assert (index.shards[0].sha256[:16], index.rows) == ("b488562c67120b9d", 9)
