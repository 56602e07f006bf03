"""Verdicts: which gates exist, which of them block, and what no number of equal answers can prove."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openai_migration.archive.contents import ArchiveContents
from openai_migration.archive.folder import make_private
from openai_migration.gate.answers import Candidate, NewAnswer, answers_file, body_for, pending
from openai_migration.gate.compare import make_receipt
from openai_migration.gate.comparisons import Margins
from openai_migration.gate.recorded import recorded_prompts
from openai_migration.receipts import MigrationGate, MigrationReceipt
from shared.errors import ArtifactInvalid
from shared.hashing import digest_json
from shared.statistics.paired import Status
from tests.support.fake_openai import TUNED, ServedOpenAI
from tests.support.recorded_archive import (
    EXACT,
    PROJECT,
    completion,
    record_archive,
    right_answer,
    with_eval,
    with_rows,
)

CANDIDATE = Candidate("helper", "helper@1")


def answered(
    contents: ArchiveContents, text: Any = right_answer, code: str = "", margin: float = 0.03, **allowed: Any
) -> MigrationReceipt:
    """The receipt for answers that a function gives to the recorded requests, as texts or as messages."""
    path = contents.folder / answers_file(TUNED)
    make_private(path.parent, contents.folder)
    lines = []
    for prompt in recorded_prompts(contents.folder, PROJECT, TUNED):
        said = text(prompt.request)
        response = completion(said) if isinstance(said, str) else completion(**said)
        answer = NewAnswer(digest_json(body_for(prompt, CANDIDATE)), 200, "helper@1", code, response)
        lines.append(msgspec.json.encode(answer) + b"\n")
    path.write_bytes(b"".join(lines))
    return make_receipt(contents, PROJECT, TUNED, CANDIDATE, "http://mens", Margins(margin, **allowed))


def gate_of(receipt: MigrationReceipt, name: str) -> MigrationGate:
    return next(gate for gate in receipt.gates if gate.name == name)


def test_similarity_blocks_where_the_old_models_own_noise_is_known(openai: ServedOpenAI, tmp_path: Path) -> None:
    with_rows(openai, 100)
    contents = record_archive(openai, tmp_path / "a", samples=1)
    receipt = answered(contents)
    assert (gate_of(receipt, "similarity").status, gate_of(receipt, "similarity").block) == (Status.PASSED, True)
    assert (receipt.noise.prompts, receipt.noise.similarity) == (100, 1.0)
    worse = answered(contents, lambda _: "Quite another text.")
    assert gate_of(worse, "similarity").status is Status.FAILED


def test_labels_that_the_old_model_never_matches_prove_nothing(openai: ServedOpenAI, tmp_path: Path) -> None:
    """Free text never equals its label, so nonsense scores as well as the tuned model and must not pass."""
    with_rows(openai, 100)
    openai.fake.complete = lambda _: "In other words."
    receipt = answered(record_archive(openai, tmp_path / "a"), lambda _: "Nonsense, if well formed.")
    assert gate_of(receipt, "label:exact").passed
    assert receipt.verdict is Status.MISSING_EVIDENCE
    assert "hardly passes them" in receipt.reason


def test_a_large_margin_is_a_small_promise_and_still_fails_nonsense(openai: ServedOpenAI, tmp_path: Path) -> None:
    with_rows(openai, 25)
    contents = record_archive(openai, tmp_path / "a")
    receipt = answered(contents, margin=0.6)
    assert (receipt.verdict, gate_of(receipt, "label:exact").decisive) == (Status.PASSED, True)
    assert answered(contents, lambda _: "Nonsense.", margin=0.6).verdict is Status.FAILED


def test_each_gate_may_have_a_margin_of_its_own(openai: ServedOpenAI, tmp_path: Path) -> None:
    with_rows(openai, 40)
    contents = record_archive(openai, tmp_path / "a")
    assert answered(contents).verdict is Status.MISSING_EVIDENCE, "40 prompts show no loss of .03"
    receipt = answered(contents, by_gate={"label:*": 0.2, "finished": 0.2, "writing_system": 0.2})
    assert receipt.verdict is Status.PASSED
    assert (gate_of(receipt, "label:exact").bound, gate_of(receipt, "similarity").bound) == (-0.2, -0.03)
    assert (receipt.margin, receipt.largest_margin) == (0.03, 0.2)


def test_gates_of_few_prompts_can_be_shown_only(openai: ServedOpenAI, tmp_path: Path) -> None:
    """A single prompt of a kind that hardly ever occurs must not block the others permanently."""
    with_rows(openai, 100)
    learned = openai.fake.complete
    openai.fake.complete = lambda request: '{"a": 1}' if "Question 7?" in str(request["messages"]) else learned(request)
    contents = record_archive(openai, tmp_path / "a")
    rare = gate_of(answered(contents, lambda request: openai.fake.complete({**request, "model": TUNED})), "json_valid")
    assert (rare.items, rare.status, rare.block) == (1, Status.MISSING_EVIDENCE, True)
    receipt = answered(contents, lambda request: openai.fake.complete({**request, "model": TUNED}), min_prompts=20)
    rare = gate_of(receipt, "json_valid")
    assert (receipt.verdict, rare.block, receipt.min_prompts) == (Status.PASSED, False, 20)
    assert "fewer prompts than --min-prompts 20" in rare.reason


def test_tool_calls_are_compared_by_function_and_arguments(openai: ServedOpenAI, tmp_path: Path) -> None:
    def calls(city: str, name: str = "weather") -> list[dict[str, Any]]:
        return [{"type": "function", "function": {"name": name, "arguments": json.dumps({"city": city})}}]

    def asked(request: Any) -> str:
        return str(request["messages"][-1]["content"])

    with_rows(openai, 30)
    openai.fake.call_tools = lambda request: calls(asked(request))
    contents = record_archive(openai, tmp_path / "a")
    same = answered(contents, lambda request: {"text": "", "tool_calls": calls(asked(request))}, margin=0.2)
    gate = gate_of(same, "same_calls")
    assert (gate.status, gate.new, gate.items, gate.decisive) == (Status.PASSED, 1.0, 30, True)
    for other in (lambda _: calls("Rome"), lambda request: calls(asked(request), "forecast")):
        receipt = answered(
            contents, lambda request, other=other: {"text": "", "tool_calls": other(request)}, margin=0.2
        )
        assert gate_of(receipt, "tool_calls_valid").old == gate_of(receipt, "tool_calls_valid").new, (
            "the form is the same"
        )
        assert (gate_of(receipt, "same_calls").new, receipt.verdict) == (0.0, Status.FAILED)


def test_prompts_without_an_answer_are_not_compared(openai: ServedOpenAI, tmp_path: Path) -> None:
    with_rows(openai, 3)
    contents = record_archive(openai, tmp_path / "a")
    with pytest.raises(ArtifactInvalid, match="3 prompts of"):
        make_receipt(contents, PROJECT, TUNED, CANDIDATE, "http://mens")
    answered(contents)
    path = contents.folder / answers_file(TUNED)
    path.write_bytes(b"{}\n" + path.read_bytes())
    with pytest.raises(ArtifactInvalid, match="cannot be read"):
        make_receipt(contents, PROJECT, TUNED, CANDIDATE, "http://mens")


def test_forms_alone_say_nothing_of_quality(openai: ServedOpenAI, tmp_path: Path) -> None:
    with_rows(openai, 0)
    with_eval(openai, 100)
    receipt = answered(record_archive(openai, tmp_path / "a"))
    assert gate_of(receipt, "finished").passed
    assert receipt.verdict is Status.MISSING_EVIDENCE
    assert "record --samples 4" in receipt.reason


def test_a_grader_that_agrees_is_quality_enough(openai: ServedOpenAI, tmp_path: Path) -> None:
    with_rows(openai, 0)
    with_eval(openai, 100, EXACT)
    receipt = answered(record_archive(openai, tmp_path / "a"))
    assert receipt.verdict is Status.PASSED
    assert gate_of(receipt, "eval:Tone/exact").items == 100


def test_a_grader_that_cannot_judge_an_item_is_refused_and_shown(openai: ServedOpenAI, tmp_path: Path) -> None:
    with_rows(openai, 0)
    with_eval(openai, 100, {**EXACT, "reference": "{{ item.missing }}"})
    receipt = answered(record_archive(openai, tmp_path / "a"))
    check = receipt.graders[0]
    assert (check.may_block, check.compared) == (False, 0)
    assert "The field item.missing does not exist" in check.refused
    assert receipt.verdict is Status.MISSING_EVIDENCE


@pytest.mark.parametrize(
    ("criterion", "words"),
    [
        ({**EXACT, "type": "unheard_of"}, "does not match any of the expected tags"),
        ({**EXACT, "operation": "neq"}, "operation"),
        (
            {
                "type": "score_model",
                "name": "judge",
                "id": "j",
                "model": "gpt-4o",
                "input": [{"role": "user", "content": "x"}],
            },
            "GRADER_UNSUPPORTED",
        ),
    ],
)
def test_a_grader_that_cannot_be_run_is_listed_with_why(
    openai: ServedOpenAI, tmp_path: Path, criterion: dict[str, Any], words: str
) -> None:
    with_rows(openai, 0)
    with_eval(openai, 10, criterion)
    receipt = answered(record_archive(openai, tmp_path / "a"))
    assert words in receipt.graders[0].refused
    assert not receipt.graders[0].may_block


def test_where_every_prompt_is_refused_nothing_is_measured(openai: ServedOpenAI, tmp_path: Path) -> None:
    with_rows(openai, 100)
    receipt = answered(record_archive(openai, tmp_path / "a"), code="CONTEXT_LENGTH_EXCEEDED")
    assert receipt.verdict is Status.MISSING_EVIDENCE
    assert receipt.reason.startswith("nothing was measured")
    assert receipt.counts.refused == {"CONTEXT_LENGTH_EXCEEDED": 100}
    assert receipt.gates == []


def test_another_adapters_answers_and_refusals_are_requested_again(openai: ServedOpenAI, tmp_path: Path) -> None:
    with_rows(openai, 5)
    contents = record_archive(openai, tmp_path / "a")
    prompts = recorded_prompts(contents.folder, PROJECT, TUNED)
    assert len(pending(contents.folder, TUNED, prompts, CANDIDATE)) == 5
    answered(contents)
    assert pending(contents.folder, TUNED, prompts, CANDIDATE) == []
    assert len(pending(contents.folder, TUNED, prompts, Candidate("helper", "helper@2"))) == 5
    answered(contents, code="CONTEXT_LENGTH_EXCEEDED")
    assert len(pending(contents.folder, TUNED, prompts, CANDIDATE)) == 5
