"""Instructions for existing texts: units keep their licence and are recorded as parents, and the judge drops unsuitable
rows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from corpus.generation.generating import Generation
from corpus.keys import stage_key
from corpus.units.extraction import Extraction
from shared.errors import InvalidRequest, NotFound
from tests.corpus.generation.model_recipes import rows_of, run, stage, write
from tests.support.chat_server import chat_server

CODE = '''
def double(number):
    """Return twice a number."""
    return number * 2


def halve(number):
    """Return half of a number."""
    return number / 2
'''
UNIT = {"name": "unit", "sampler": "unit", "path": "units", "kinds": ["function"]}
ASK = {"name": "ask", "method": "back_translate", "model": "helper", "text": "{{ item.unit.code }}"}
ROW = {"prompt": "{{ item.ask }}", "response": "{{ item.unit.code }}", "origin": "human"}


@pytest.fixture
def units(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "numbers.py").write_text(CODE)
    extraction = Extraction((tmp_path / "code",), ("python",), "MIT")
    key = stage_key(extraction.name, extraction.version, extraction.parameters(), extraction.inputs())
    extraction.run(tmp_path / "units", key)
    return tmp_path / "units"


def respond(body: dict[str, Any]) -> str:
    prompt = body["messages"][-1]["content"]
    name = "double" if "def double" in prompt else "halve"
    if prompt.startswith("Write the instruction"):
        return f"Write a function {name}."
    return json.dumps({"steps": [], "result": "yes" if name == "double" else "no"})


def test_the_text_of_a_person_is_the_answer(tmp_path: Path, units: Path) -> None:
    recipe = write(tmp_path, rows=2, columns=[UNIT, ASK], row=ROW)
    with chat_server(respond) as server:
        index, [row] = run(recipe, server.url, tmp_path / "rows")
        assert len(server.bodies) == 4
        [plan] = stage(recipe, server.url).plan(tmp_path / "rows")
        assert plan.requests == 4
    assert index.report["dropped"] == {"JUDGED_BAD": 1}
    assert row["prompt"] == "Write a function double."
    assert row["response"].startswith("def double(number):")
    assert row["origin"] == "human"
    line = json.loads((tmp_path / "rows" / "part-00000.sources.jsonl").read_bytes())
    unit = next(
        json.loads(one) for one in (units / "part-00000.jsonl").read_bytes().splitlines() if b"def double" in one
    )
    assert line["license"] == "MIT"
    assert len(line["parents"]) == 1
    assert unit["id"]


def test_each_unit_comes_once_before_one_comes_again(tmp_path: Path, units: Path) -> None:
    row = {"prompt": "{{ item.unit.name }}", "response": "{{ item.unit.code }}"}
    generation = Generation(write(tmp_path, rows=6, terms=None, columns=[UNIT], row=row))
    before = generation.inputs()
    generation.run(tmp_path / "rows", "key")
    names = [row["prompt"] for row in rows_of(tmp_path / "rows")]
    assert sorted(names[:2]) == ["double", "halve"]
    assert names[2:] == names[:2] * 2
    (tmp_path / "code" / "numbers.py").write_text(CODE.replace("* 2", "+ number"))
    Extraction((tmp_path / "code",), ("python",), "MIT").run(units, "other")
    assert Generation(tmp_path / "recipe.yaml").inputs() != before


@pytest.mark.parametrize("kinds", [None, ["section"]])
def test_units_that_do_not_exist(tmp_path: Path, units: Path, kinds: list[str] | None) -> None:
    column = UNIT | ({"path": "none"} if kinds is None else {"kinds": kinds})
    recipe = write(tmp_path, columns=[column, ASK], row=ROW)
    with pytest.raises(NotFound if kinds is None else InvalidRequest) as caught:
        run(recipe, "http://127.0.0.1:9/v1", tmp_path / "rows")
    assert caught.value.code == ("CORPUS_SOURCE_MISSING" if kinds is None else "CORPUS_RECIPE_INVALID")
