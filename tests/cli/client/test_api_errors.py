"""API errors as commands show them: always the same fields, and the remedy once."""

from __future__ import annotations

import httpx
import pytest

from cli.client.api_errors import describe_error, error_of
from shared.errors import Code, NotFound

FIELDS = set(NotFound(Code.JOB_NOT_FOUND, "").as_dict())
REMEDY = "See GET /v1/jobs."


def test_remedy_is_in_its_own_field_alone_and_is_a_command() -> None:
    mens = {"code": "JOB_NOT_FOUND", "remedy": REMEDY, "details": {"id": "ftjob-1"}, "retryable": False}
    body = {"message": f"There is none. {REMEDY}", "type": "not_found_error", "param": "id", "code": None, "mens": mens}
    assert error_of(httpx.Response(404, json={"error": body})) == {
        "code": "JOB_NOT_FOUND",
        "message": "There is none.",
        "remedy": "List them: `mens jobs list`.",
        "param": "id",
        "details": {"id": "ftjob-1"},
        "retryable": False,
    }


@pytest.mark.parametrize(("status", "retryable"), [(422, False), (429, True), (503, True)])
def test_error_without_our_block_has_all_fields(status: int, retryable: bool) -> None:
    error = error_of(httpx.Response(status, json={"error": {"code": "boom", "message": "It is another program's."}}))
    assert (set(error), error["code"], error["remedy"], error["retryable"]) == (FIELDS, "boom", "", retryable)


@pytest.mark.parametrize(("status", "retryable"), [(404, False), (502, True)])
@pytest.mark.parametrize("body", ["<html>", "[]", '{"error": "no"}'])
def test_answer_of_another_program_is_an_unavailable_api(status: int, retryable: bool, body: str) -> None:
    error = error_of(httpx.Response(status, text=body))
    assert (set(error), error["code"], error["retryable"]) == (FIELDS, "API_UNAVAILABLE", retryable)
    assert f"not from a Mens API: {status}: {body}" in error["message"]


def test_each_fault_has_a_line() -> None:
    faults = [{"line": 3, "reason": "no"}, {"param": "a.b", "reason": "X-Mens-Tenant is wrong"}]
    body = {"code": "DATASET_LINE_INVALID", "message": "2 lines.", "mens": {"details": {"errors": faults}}}
    shown = describe_error(error_of(httpx.Response(400, json={"error": body})))
    assert shown == "DATASET_LINE_INVALID: 2 lines.\n  line 3: no\n  a.b: MENS_TENANT is wrong"


def test_tenant_header_is_shown_as_its_variable() -> None:
    body = {"code": "REQUEST_INVALID", "message": "X-Mens-Tenant: 'default' is reserved."}
    error = error_of(httpx.Response(422, json={"error": body}))
    assert describe_error(error).endswith(": MENS_TENANT: 'default' is reserved.")


def test_a_line_that_the_message_names_is_printed_once() -> None:
    faults = [{"line": 2, "reason": "not a list"}, {"line": 3, "reason": "not JSON"}]
    error = {"code": "C", "message": "The first is line 2: not a list.", "remedy": "", "details": {"errors": faults}}
    assert describe_error(error) == "C: The first is line 2: not a list.\n  line 3: not JSON"


def test_lines_with_the_same_reason_are_named_together() -> None:
    faults = [{"line": number, "reason": "not a list"} for number in (2, 3, 4, 9)] + [{"line": 5, "reason": "blank"}]
    error = {"code": "C", "message": "The first is line 2: not a list.", "remedy": "", "details": {"errors": faults}}
    assert describe_error(error) == "C: The first is line 2: not a list.\n  lines 3-4, 9: the same\n  line 5: blank"
