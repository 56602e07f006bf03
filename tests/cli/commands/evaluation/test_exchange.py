"""``mens eval import``: promptfoo's configuration as eval files."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from cli.evaluation.eval_file import read
from cli.main import app

CONFIG = """
description: Our Greetings!
prompts: ["Say {{word}}."]
providers: [openai:gpt-4o-mini]
tests:
  - vars: {word: hi}
    assert: [{type: contains, value: "{{word}}"}, {type: javascript, value: "true"}]
"""


def mens(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["eval", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_configuration_becomes_eval_files(tmp_path: Path) -> None:
    (tmp_path / "promptfooconfig.yaml").write_text(CONFIG)
    printed = mens("import", str(tmp_path / "promptfooconfig.yaml"))
    assert "our-greetings.eval.yaml\t1 item, 1 grader" in printed
    assert "not used: tests[0].assert[1] (javascript)" in printed
    assert "openai:gpt-4o-mini is not taken" in printed
    found = read(tmp_path / "our-greetings.eval.yaml")
    assert found.name == "Our Greetings!"
    assert list(found.items) == [{"word": "hi", "expected_1": "hi"}]


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    arguments = ("import", str(tmp_path / "config.yaml"), "--output", str(tmp_path / "evals"), "--json")
    printed = json.loads(mens(*arguments).partition("{")[2].join(["{", ""]))
    assert len(printed["not_used"]) == 2
    assert "already exists" in mens(*arguments, code=1)


def test_configuration_without_a_usable_test_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("prompts: [a]\ntests: [file://tests.csv]\n")
    assert "no usable prompt with a test" in mens("import", str(tmp_path / "config.yaml"), code=1)
    (tmp_path / "config.yaml").write_text("- 1")
    assert "EVAL_INVALID" in mens("import", str(tmp_path / "config.yaml"), code=1)
