"""Evaluation of a training file: the original's fields and units, and the gates that judge answers of models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corpus.measures.evaluation import CorpusEvaluation, judge_file, measure_file
from shared.checkers.languages import construct_kinds, installed_languages
from shared.errors import Code, InvalidRequest
from shared.gates.policy_file import read_policy
from tests.corpus.measures.answers import GOOD, row

FIELDS = (
    "run_id", "total_samples", "format_validity", "safety_rejection_rate", "vox_parse_rate", "construct_coverage", "construct_total",
    "construct_coverage_pct", "quality_proxy", "context_breakdown", "modal_breakdown",
)  # fmt: skip
"""Keys of the original's ``eval_results.json``."""
STUB = "```python\ndef add(a, b):\n    # TODO: the sum\n    return a\n```"


def write(folder: Path, *rows: dict[str, Any], more: str = "") -> Path:
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows) + more)
    return path


def evaluated(path: Path, *languages: str) -> CorpusEvaluation:
    return measure_file(path, languages or ("python",)).evaluation()


def test_fields_and_their_units_are_the_originals(tmp_path: Path) -> None:
    rows = [
        row(GOOD, category="function"),
        row("total = left + right\nreturn total", response_mode="code_only", category="function", lane="vox_codegen"),
        row("```python\ndef add(:\n```", category="test"),
        row(STUB),
        row("Only words."),
        row("My key is AKIAQ4XWTB7ZJ2LMNP5R.", category="vox_speech"),
    ]
    found = evaluated(write(tmp_path, *rows, more="not JSON\n"))
    assert tuple(msgspec.to_builtins(found)) == FIELDS
    assert found.total_samples == 7
    assert found.format_validity == pytest.approx(6 / 7, abs=1e-6)
    assert found.safety_rejection_rate == pytest.approx(1 / 6, abs=1e-6)
    assert (found.vox_parse_rate, found.quality_proxy) == (0.75, 0.5)
    # function, arguments, conditional, arithmetic, return, assignment
    assert (found.construct_coverage, found.construct_total) == (5, 27)
    assert found.construct_coverage_pct == pytest.approx(100 * 5 / 27, abs=1e-4)
    contexts = {name: (one.total_samples, one.parse_rate) for name, one in found.context_breakdown.items()}
    assert contexts == {"(none)": (2, 1.0), "function": (2, 1.0), "test": (1, 0.0), "vox_speech": (1, None)}
    assert found.modal_breakdown == {"text": 5, "voice": 1}


def test_equal_files_give_equal_values_and_other_languages_another_run(tmp_path: Path) -> None:
    path = write(tmp_path, row("```sql\nselect a from b where c\n```"), row(GOOD))
    sql = evaluated(path, "sql")
    assert evaluated(path, "sql") == sql
    assert (sql.vox_parse_rate, sql.construct_coverage) == (1.0, 2)
    both = evaluated(path, "sql", "python")
    assert both.run_id != sql.run_id
    assert both.construct_total == len(construct_kinds("sql")) + len(construct_kinds("python"))


def test_nothing_that_was_not_measured_has_a_number(tmp_path: Path) -> None:
    found = evaluated(write(tmp_path, row("Only words.")))
    assert (found.vox_parse_rate, found.quality_proxy, found.construct_coverage) == (None, None, 0)
    empty = evaluated(write(tmp_path))
    assert (empty.total_samples, empty.format_validity, empty.context_breakdown) == (0, 0.0, {})


def test_our_checkers_list_every_kind_that_they_count() -> None:
    for language in {*installed_languages()} & {"python", "json", "sql"}:
        assert construct_kinds(language)


def statuses(path: Path, policy: str) -> dict[str, str]:
    found = measure_file(path, ("python",))
    return {one.name: one.status.value for one in judge_file(found, read_policy(policy), "p")}


def test_gates_on_answers_judge_the_file(tmp_path: Path) -> None:
    policy = """
version: "1"
runs: {mine: {eval: eval-1, file: file-1}}
gates:
  eval_local: {run: mine, parse_criterion: my_own, min_coverage_pct: 0.1}
  anti_stub: {}
  modal_mix: {}
  per_context: {function: {}}
  supervised_ratio: {}
  evals: {mine: {run: mine, min_score: 0.5}}
"""
    rows = [row(GOOD, category="function") for _ in range(20)]
    passed = statuses(write(tmp_path, *rows), policy)
    # The scope was not measured; gates on the training and on models do not concern a file.
    assert passed == {
        "eval_local": "passed", "anti_stub": "passed", "modal_mix": "passed", "per_context.function": "missing_evidence",
    }  # fmt: skip
    stubs = statuses(write(tmp_path, *rows, *(row(STUB, category="vox_speech") for _ in range(20))), policy)
    assert (stubs["eval_local"], stubs["anti_stub"], stubs["modal_mix"]) == ("passed", "failed", "failed")
    assert statuses(write(tmp_path, *rows[:19]), policy)["eval_local"] == "missing_evidence"
    assert statuses(write(tmp_path, row("words", category="x")), policy)["eval_local"] == "missing_evidence"


def test_answers_that_were_cut_off_do_not_pass(tmp_path: Path) -> None:
    """They end within their block, which graders read to the end of the answer."""
    policy = 'version: "1"\nruns: {mine: {eval: eval-1, file: file-1}}\ngates: {eval_local: {run: mine}}'
    cut = GOOD[: GOOD.rindex("return")] + "return (b"
    labels = ("```python", "```py", "```")
    rows = [row(GOOD) for _ in range(20)] + [
        row(cut.replace("```python", label)) for label in labels for _ in range(20)
    ]
    path = write(tmp_path, *rows)
    assert evaluated(path).vox_parse_rate == 0.25
    assert statuses(path, policy) == {"eval_local": "failed"}


def test_policy_without_a_gate_on_files_is_refused(tmp_path: Path) -> None:
    found = measure_file(write(tmp_path, row(GOOD)), ("python",))
    with pytest.raises(InvalidRequest, match="eval_local") as raised:
        judge_file(found, read_policy('version: "1"\ngates: {supervised_ratio: {}}'), "p")
    assert raised.value.code is Code.POLICY_INVALID
