"""The result that an item reports is checked, because graded code can write it in place of its grader."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shared.sandbox.channel import MAX_MESSAGE_BYTES
from shared.sandbox.client import MAX_ANSWER_BYTES
from shared.sandbox.grader_process import MAX_OUTPUT_BYTES, _read_result
from shared.sandbox.levels import Limits


def read(told: Any) -> dict[str, Any]:
    return _read_result(json.dumps(told).encode(), 0, Limits())


def test_a_score_is_nothing_but_a_score() -> None:
    assert read({"score": 0.5, "output": "x"}) == {"score": 0.5}


def test_its_own_errors_are_passed_on() -> None:
    told = {"error": "raised", "message": "KeyError: 'x'", "detail": "Traceback"}
    assert read(told) == told


@pytest.mark.parametrize(
    "told",
    [
        {"error": "server", "message": "it has failed"},
        {"error": "time", "message": "x"},
        {"error": ["raised"]},
        {"score": 1},
        {"score": [1.0]},
        [1.0],
        {},
    ],
)
def test_results_that_only_the_watch_may_report_are_not_answers(told: Any) -> None:
    assert read(told)["message"] == "its process ended with exit code 0 before it had answered"


def test_a_score_does_not_carry_a_failure_of_the_sandbox() -> None:
    assert read({"score": 1.0, "error": "server"}) == {"score": 1.0}


def test_what_is_passed_on_is_short_enough_to_be_received() -> None:
    """Escaped in JSON a byte can take six, and an answer that is not received is taken for a failure of the sandbox."""
    content = b'{"error": "raised", "message": "%s"}' % (b"\x7f" * (MAX_OUTPUT_BYTES - 40))
    outcome = _read_result(content, 0, Limits()) | {"output": "\ufffd" * MAX_OUTPUT_BYTES}
    assert outcome["error"] == "raised"
    assert len(json.dumps(outcome)) < MAX_ANSWER_BYTES < MAX_MESSAGE_BYTES
