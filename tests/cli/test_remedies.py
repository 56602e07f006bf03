"""Remedies: what the API says for HTTP, the command line says with commands."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cli.connection import describe_error
from cli.remedies import in_cli_words

ROOT = Path(__file__).resolve().parents[2]
NO_COMMAND = ("GET /v1/contract/schema", "GET /v1/openapi.json")
"""What the command line has no command for."""


def remedies() -> Iterator[str]:
    """Every remedy that is written in the API or below it, X for what is filled in."""
    for path in [*(ROOT / "api").rglob("*.py"), *(ROOT / "shared").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "remedy":
                yield "".join(_text(node.value))


def _text(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.JoinedStr):
        for part in node.values:
            yield str(part.value) if isinstance(part, ast.Constant) else "X"


def test_no_remedy_names_a_route_that_has_a_command() -> None:
    found = list(remedies())
    assert any("/v1/" in remedy for remedy in found)
    translated = [in_cli_words(remedy) for remedy in found]
    for route in NO_COMMAND:
        translated = [remedy.replace(route, "") for remedy in translated]
    assert not [remedy for remedy in translated if "/v1/" in remedy or "X-Mens" in remedy or "Bearer" in remedy]


@pytest.mark.parametrize(
    ("spoken", "typed"),
    [
        ("List what there is with GET /v1/models.", "List what there is with `mens models`."),
        ("List what there is with GET /v1/aliases.", "List what there is with `mens aliases list`."),
        ("List them: GET /v1/jobs.", "List them: `mens jobs list`."),
        ("Look at it with GET /v1/jobs/ftjob-1.", "Look at it with `mens jobs show ftjob-1`."),
        ("List them: GET /v1/keys or `mens keys list`.", "List them: `mens keys list`."),
        ("See where it was with GET /v1/aliases/a.b/history.", "See where it was with `mens aliases history a.b`."),
        ("Delete the alias with DELETE /v1/aliases/a.b, or not.", "Delete the alias with `mens aliases delete a.b`, or not."),
        ("Send `Authorization: Bearer KEY`; make one.", "Set MENS_API_KEY; make one."),
        ("Make one with `mens keys create NAME`.", "Set MENS_API_KEY to one that an admin made with `mens keys create NAME`."),
        ("Leave `tenant` out.", "Leave MENS_TENANT unset and --tenant out."),
        ("Ask an admin.", "Ask an admin."),
    ],
)  # fmt: skip
def test_phrases(spoken: str, typed: str) -> None:
    assert in_cli_words(spoken) == typed


def test_only_the_remedy_is_translated_not_what_the_caller_wrote() -> None:
    remedy = "List what there is with GET /v1/models."
    message = f"There is no model 'GET /v1/models'. {remedy}"
    error = {"code": "MODEL_NOT_FOUND", "message": message, "mens": {"remedy": remedy, "details": {}}}
    said = describe_error(httpx.Response(404, json={"error": error}))
    assert said == "MODEL_NOT_FOUND: There is no model 'GET /v1/models'. List what there is with `mens models`."


def test_an_error_of_somebody_else_is_passed_on() -> None:
    error = {"code": "boom", "message": "Somebody else's error."}
    assert describe_error(httpx.Response(502, json={"error": error})) == "boom: Somebody else's error."
