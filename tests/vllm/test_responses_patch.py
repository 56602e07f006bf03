"""Tool choices: a forced call must follow its function's schema with each parser that a replica may choose, or is
refused.
"""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from shared.tokenization.tool_call_forms import FORMS
from tests.support.tool_calls import CALLS, NAMED, parser_named, request_of, small_tokenizer

pytest.importorskip("vllm")


def is_accepted(outputs: Any, text: str) -> bool:
    xgrammar = pytest.importorskip("xgrammar")
    testing = pytest.importorskip("xgrammar.testing")
    from serving.vllm_white_space_patch import MAX_WHITE_SPACE, bounded

    if outputs.structural_tag:
        tag = json.dumps(bounded(json.loads(outputs.structural_tag)))
        grammar = xgrammar.Grammar.from_structural_tag(tag)
    else:
        schema = json.dumps(outputs.json)
        grammar = xgrammar.Grammar.from_json_schema(schema, max_whitespace_cnt=MAX_WHITE_SPACE)
    return bool(testing._is_grammar_accept_string(grammar, text))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """One with the tokens that the parsers need."""
    return small_tokenizer()


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
@pytest.mark.parametrize("route", ["chat", "responses"])
@pytest.mark.parametrize("name", sorted({form.parser for form in FORMS}))
def test_forced_call_is_held_to_its_schema_or_refused(tokenizer: Any, name: str, route: str, choice: Any) -> None:
    from serving.vllm_responses_patch import unkept

    parser, request = parser_named(name), request_of(route, choice)
    outputs = parser(tokenizer, request.tools).adjust_request(request).structured_outputs
    if outputs is None:
        assert (name, route) == ("mistral", "responses"), "when this fails, vLLM holds more calls or fewer than it did"
        assert "chat completion" in (unkept(parser.tool_parser_cls, choice) or "")
        return
    assert route == "chat" or unkept(parser.tool_parser_cls, request.tool_choice) is None
    found = [is_accepted(outputs, text) for text in (CALLS[name] % 7, CALLS[name] % '"x"', "It is 7.", "")]
    assert found == [True, False, False, False]


@pytest.mark.parametrize(
    ("name", "choice", "is_refused"),
    [
        (None, "auto", True),
        (None, "required", True),
        (None, NAMED, True),
        (None, "none", False),
        ("mistral", NAMED, True),
        ("mistral", "auto", False),
        ("hermes", NAMED, False),
    ],
)
def test_choice_that_nothing_keeps_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str | None, choice: Any, is_refused: bool
) -> None:
    """vLLM checks this for chats, and renders a response's prompt without; when it checks both, remove the patch."""
    from vllm.renderers.online_renderer import OnlineRenderer

    from serving.vllm_responses_patch import apply_patch

    async def render(*_: Any, **__: Any) -> str:
        return "rendered"

    monkeypatch.setattr(OnlineRenderer, "render_responses", render)
    for _ in range(2):
        apply_patch()
    parser = parser_named(name) if name else None
    renderer = SimpleNamespace(parser=parser, use_harmony=False, create_error_response=lambda text, param: param)
    answer = asyncio.run(OnlineRenderer.render_responses(renderer, request_of("responses", choice)))  # type: ignore[arg-type]
    assert answer == ("tool_choice" if is_refused else "rendered")
