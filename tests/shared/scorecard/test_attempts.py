"""A task is answered, checked, repaired with the diagnostics, and given up when the same errors recur."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.checkers.checker import Check
from shared.checkers.python_checker import PythonChecker
from shared.scorecard.attempts import Message, ModelAnswer, run_task
from shared.scorecard.records import ScorecardEvent
from shared.scorecard.spec import ScorecardSpec
from tests.support.scorecards import scorecard_spec

GOOD = "def f(values):\n    return [2 * value for value in values]\n"
check = PythonChecker().check


def run(texts: list[str], **fields: Any) -> tuple[ScorecardEvent, list[list[Message]]]:
    spec = ScorecardSpec.model_validate({**scorecard_spec(1), **fields})
    sent: list[list[Message]] = []

    def generate(messages: list[Message], attempt: int) -> ModelAnswer | None:
        assert attempt == len(sent) + 1
        sent.append(messages)
        return ModelAnswer(texts[attempt - 1], tokens_in=10, tokens_out=3, latency_ms=5.0)

    found = run_task(spec, spec.conditions[0], spec.tasks[0], generate, check)
    assert found
    return found[0], sent


def test_an_answer_that_compiles_needs_no_repair() -> None:
    event, sent = run([GOOD], system_prompt="Code only.")
    assert (event.attempts, event.repair_depth, event.compile_pass_1, event.canonical_pass) == (1, 0, True, True)
    assert (event.task_success, event.semantic_task_success, event.anti_stub_pass) == (True, True, True)
    assert sent == [[{"role": "system", "content": "Code only."}, {"role": "user", "content": "Write task 0."}]]


def test_a_repair_gets_the_answer_and_its_diagnostics() -> None:
    event, sent = run(["def f(:\n", "print(missing)\n", GOOD])
    assert (event.attempts, event.repair_depth, event.compile_pass_1, event.compile_pass_n) == (3, 2, False, True)
    assert [turn["role"] for turn in sent[2]] == ["user", "assistant", "user", "assistant", "user"]
    assert "- line 1: undefined name 'missing' (name)" in sent[2][-1]["content"]
    assert sent[2][-2]["content"] == "print(missing)\n"


def test_tokens_are_the_servers_and_no_words() -> None:
    event, _ = run(["one two three\n", GOOD])
    assert (event.time_to_first_valid_ms, event.tokens_in, event.tokens_out) == (10.0, 20, 6)


def test_the_same_errors_again_are_a_stall_wherever_they_are() -> None:
    event, sent = run(["print(a)\n", "\n\nprint(a)\n", GOOD])
    assert (event.repair_stalled, event.attempts, len(sent), event.compile_pass_n) == (True, 2, 2, False)
    assert (event.repair_depth, event.time_to_first_valid_ms) == (None, None)
    assert run(["print(a)\n", "print(b)\n", "print(a)\n"])[0].repair_stalled


def test_retries_end_without_a_stall_when_errors_differ() -> None:
    event, _ = run(["print(a)\n", "print(b)\n", "print(c)\n", GOOD])
    assert (event.attempts, event.repair_stalled, event.compile_pass_n) == (3, False, False)
    assert run(["print(a)\n", GOOD], max_retries=0)[0].attempts == 1


def test_code_in_prose_is_neither_canonical_nor_strict() -> None:
    event, _ = run([f"Sure:\n```python\n{GOOD}```\n"])
    assert event.compile_pass_1
    assert (event.canonical_pass, event.voxelized_strictness) == (False, pytest.approx(2 / 3))


def test_code_that_does_not_contain_what_is_expected_is_not_a_success() -> None:
    # Prose around a block of code is not code.
    for text in ("x = 1\ny = x + 1\n", "def and return\n```\nx = 1\n```\n"):
        event, _ = run([text])
        assert (event.compile_pass_n, event.task_success, event.semantic_task_success) == (True, False, False)


def test_a_stub_compiles_and_is_found() -> None:
    event, _ = run(["def f():\n    return 1  # TODO\n"])
    assert (event.task_success, event.anti_stub_pass, event.placeholder_marker_hits) == (True, False, 1)


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([GOOD, "print(a)\n", "print(b)\n", "def f(:", "x = 1\n"]), min_size=9, max_size=9),
    st.integers(0, 8),
)
def test_any_answers_give_an_event_that_agrees_with_itself(texts: list[str], retries: int) -> None:
    event, sent = run(texts, max_retries=retries)
    compiles = [check(text).compiles for text in texts[: event.attempts]]
    assert event.attempts == len(sent) <= retries + 1
    assert not any(compiles[:-1])
    assert event.compile_pass_n == compiles[-1]
    assert event.attempts == retries + 1 or event.compile_pass_n or event.repair_stalled


def test_missing_answer_is_not_an_event() -> None:
    spec = ScorecardSpec.model_validate(scorecard_spec(1))
    assert run_task(spec, spec.conditions[0], spec.tasks[0], lambda *_: None, lambda _: Check(())) is None
