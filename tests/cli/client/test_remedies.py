"""Remedies of API errors as commands, found by code and field."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.client.api_errors import describe_error, error_of
from cli.client.remedies import to_cli_remedy, with_file
from shared.errors import Code

ROOT = Path(__file__).resolve().parents[3]
NOT_CALLED = ("api/openai", "api/ollama", "api/routes/fine_tuning.py", "api/routes/ollama.py")
"""Views of the API that the command line never calls."""
HTTP_WORDS = re.compile(r"/v1/|X-Mens|Bearer|`tenant`|`key_id`")
NO_COMMAND = (
    "GET /v1/contract/schema",
    "GET /v1/openapi.json",
    "GET /v1/uploads/{upload_id}",
    "POST /v1/uploads",
    "GET /v1/webhook_endpoints",
    "DELETE /v1/webhook_endpoints/{id}",
)
"""Routes without a command."""


def error(code: Code, field: str | None = None, remedy: str = "", **details: Any) -> dict[str, Any]:
    """An error as the API sends it."""
    return {"code": code, "message": f"No. {remedy}", "param": field, "mens": {"remedy": remedy, "details": details}}


def raised() -> Iterator[dict[str, Any]]:
    """Every error with a remedy that the API, or `shared` below it, makes; X for what is filled in."""
    for path in [*(ROOT / "api").rglob("*.py"), *(ROOT / "shared").rglob("*.py")]:
        if path.relative_to(ROOT).as_posix().startswith(NOT_CALLED):
            continue
        tree = ast.parse(path.read_text())
        texts = {
            target.id: "".join(_text(node.value, {}))
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and call.args:
                parts = {part.arg: "".join(_text(part.value, texts)) for part in call.keywords if part.arg}
                for code in re.findall(r"\bCode\.([A-Z0-9_]+)", ast.unparse(call.args[0])):
                    if "remedy" in parts:
                        yield error(Code(code), parts.get("param"), parts["remedy"])


def _text(node: ast.expr, names: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.Name):
        yield names.get(node.id, "")
    elif isinstance(node, ast.JoinedStr):
        for part in node.values:
            yield str(part.value) if isinstance(part, ast.Constant) else "X"


def test_no_remedy_names_a_route_that_has_a_command() -> None:
    over_http = [each for each in raised() if HTTP_WORDS.search(each["mens"]["remedy"])]
    assert len(over_http) > 10
    for each in over_http:
        remedy = to_cli_remedy(each)
        for route in NO_COMMAND:
            remedy = remedy.replace(route, "")
        assert not HTTP_WORDS.search(remedy), each


@pytest.mark.parametrize(
    ("code", "field", "remedy"),
    [
        (Code.MODEL_NOT_FOUND, "model", "List available models with `mens models`."),
        (Code.ALIAS_NOT_FOUND, "name", "List them: `mens aliases list`."),
        (Code.ALIAS_VERSION_NOT_FOUND, "to_version", "List its versions with `mens aliases history NAME`."),
        (Code.JOB_NOT_FOUND, None, "List them: `mens jobs list`."),
        (Code.KEY_NOT_FOUND, "key_id", "List them: `mens keys list`."),
        (Code.KEY_INVALID, None, "Set MENS_API_KEY to a key that an admin created with `mens keys create NAME`."),
        (Code.TENANT_FORBIDDEN, "tenant", "Unset MENS_TENANT and leave --tenant out."),
        (Code.FILE_NOT_FOUND, "data.train_file", "List them: `mens files list`; `mens train FILE` uploads one."),
    ],
)
def test_remedy_is_found_by_code_and_field(code: Code, field: str | None, remedy: str) -> None:
    assert to_cli_remedy(error(code, field, "Something with GET /v1/other.")) == remedy


@pytest.mark.parametrize(
    ("code", "field"),
    [(Code.TENANT_FORBIDDEN, None), (Code.MODEL_NOT_FOUND, "source.path"), (Code.REQUEST_INVALID, "group_by")],
)
def test_other_remedies_of_a_code_are_kept(code: Code, field: str | None) -> None:
    assert to_cli_remedy(error(code, field, "Ask an admin.")) == "Ask an admin."


@pytest.mark.parametrize(
    ("field", "remedy"),
    [
        ("kind", "See the command's --help for valid values."),
        (
            "contract.exec.epochs",
            "See the command's --help for valid values; the contract's schema is at GET /v1/contract/schema.",
        ),
    ],
)
def test_invalid_field_refers_to_help(field: str, remedy: str) -> None:
    faults = [{"param": field, "reason": "wrong"}]
    assert to_cli_remedy(error(Code.REQUEST_INVALID, field, "See GET /v1/openapi.json.", errors=faults)) == remedy


def test_the_field_that_was_meant_is_kept() -> None:
    faults = [{"param": "contract.exec.epoch", "reason": "this field does not exist"}]
    meant = "Did you mean contract.exec.epochs?"
    shown = to_cli_remedy(error(Code.REQUEST_INVALID, "contract.exec.epoch", f"{meant} See GET /v1/x.", errors=faults))
    assert shown.startswith(f"{meant} See the command's --help")


def test_only_the_remedy_of_a_message_is_replaced() -> None:
    remedy = "List the available models with GET /v1/models."
    body = error(Code.MODEL_NOT_FOUND, "model", remedy) | {
        "message": f"The model 'GET /v1/models' does not exist. {remedy}"
    }
    shown = describe_error(error_of(httpx.Response(404, json={"error": body})))
    assert (
        shown == "MODEL_NOT_FOUND: The model 'GET /v1/models' does not exist. List available models with `mens models`."
    )


def test_error_without_our_block_is_passed_on() -> None:
    body = {"code": "boom", "message": "An error of another program."}
    assert describe_error(error_of(httpx.Response(502, json={"error": body}))) == "boom: An error of another program."


def test_code_is_ours_where_the_api_has_openais_too() -> None:
    mens = {"code": "MODEL_NOT_FOUND", "remedy": "List the available models with GET /v1/models."}
    assert (
        to_cli_remedy({"code": "model_not_found", "param": "model", "mens": mens})
        == "List available models with `mens models`."
    )


@pytest.mark.parametrize(
    ("remedy", "shown"),
    [
        ("List the available models with GET /v1/models.", "List the available models with `mens models`."),
        ("Cancel that job: POST /v1/jobs/ftjob-01/cancel.", "Cancel that job: `mens jobs cancel ftjob-01`."),
        ("List them: GET /v1/evals/eval-1/runs.", "List them: `mens eval list`."),
        ("See GET /v1/evals, then try.", "See `mens eval list`, then try."),
    ],
)
def test_routes_of_other_remedies_become_commands(remedy: str, shown: str) -> None:
    assert to_cli_remedy(error(Code.EVAL_NOT_FOUND, None, remedy)) == shown


def test_a_remedy_names_the_file() -> None:
    assert with_file("`convert FILE -o rows` (FILES)", Path("my rows")) == "`convert 'my rows' -o rows` (FILES)"
