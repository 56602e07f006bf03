"""One chat as a training row and as a request: trainer and replica render the same text, with every template.

The trainer uses Mens's own code; the replica's text comes from the API, vLLM's parsing of requests, and transformers'
chat templates.
"""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from api.inference.request_validation import validate_chat
from shared.datasets.row_validation import parse_row
from shared.datasets.rows import TrainingRow
from shared.errors import InvalidRequest
from shared.tokenization.chat_template import ChatTemplate
from shared.tokenization.served_form import plain_messages, served_roles, served_tools
from tests.support.template_families import FAMILIES

pytest.importorskip("vllm")

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
WORDS = st.sampled_from(["a", "Grüße\n", "{x}", "</tool_call>", " 7 ", "日本"]) | TEXT
PARTS = st.lists(st.builds(lambda text: {"type": "text", "text": text}, WORDS), min_size=1, max_size=3)
NUMBERS = st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False, allow_infinity=False) | st.just(1e300)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(WORDS, VALUES, max_size=4)
ABSENT = object()
ARGUMENTS = st.sampled_from(["", "  ", "null", " null ", "{}", None, {}, ABSENT]) | st.builds(
    lambda value, ascii_only, spaces: json.dumps(value, ensure_ascii=ascii_only, indent=2 if spaces else None),
    OBJECTS,
    st.booleans(),
    st.booleans(),
)
"""Arguments as clients and files write them; a value of null in an object of its own is another test's, because tables
write it."""
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null"])
PROPERTY = st.fixed_dictionaries(
    {"type": TYPES}, optional={"description": WORDS, "default": st.none() | WORDS, "enum": st.just(["x", None])}
)
PARAMETERS = st.fixed_dictionaries(
    {"type": st.just("object"), "properties": st.dictionaries(WORDS, PROPERTY, max_size=3)},
    optional={"required": st.just([]), "additionalProperties": st.booleans(), "title": WORDS},
)
FUNCTION = st.fixed_dictionaries(
    {}, optional={"description": WORDS, "parameters": PARAMETERS, "strict": st.sampled_from([True, False, None])}
)
TOOLS = st.lists(FUNCTION, max_size=3).map(
    lambda found: [{"type": "function", "function": {"name": f"f{i}"} | each} for i, each in enumerate(found)]
)


def has_text(content: Any) -> bool:
    """Return whether a row may have this content of a user: a row without any is refused."""
    return bool(content) if isinstance(content, str) else any(part["text"] for part in content)


@st.composite
def calls(draw: Any, number: int) -> dict[str, Any]:
    arguments = draw(ARGUMENTS)
    function = {"name": draw(st.sampled_from(["f0", "f1", "other"]))}
    function |= {} if arguments is ABSENT else {"arguments": arguments}
    keys = [("id", f"call_{number}"), ("type", "function"), ("function", function)]
    return dict(draw(st.permutations(keys)))


@st.composite
def chats(draw: Any) -> list[dict[str, Any]]:
    turns = [{"role": "system", "content": draw(WORDS | PARTS)}] if draw(st.booleans()) else []
    for number in range(draw(st.integers(1, 3))):
        named = {"name": "Ann"} if draw(st.booleans()) else {}
        turns.append({"role": "user", "content": draw((WORDS | PARTS).filter(has_text))} | named)
        if draw(st.booleans()):
            made = [draw(calls(10 * number + index)) for index in range(draw(st.integers(1, 2)))]
            turns.append({"role": "assistant", "content": draw(st.none() | WORDS), "tool_calls": made})
            turns += [{"role": "tool", "content": draw(WORDS | PARTS), "tool_call_id": call["id"]} for call in made]
        thoughts = {"reasoning_content": draw(WORDS)} if draw(st.booleans()) else {}
        empty = {"tool_calls": draw(st.sampled_from([[], None]))} if draw(st.booleans()) else {}
        turns.append({"role": "assistant", "content": f"Answer {number}"} | thoughts | empty)
    return turns


class Config:
    """A model's configuration as vLLM asks it while it parses messages: of a model of texts, without options."""

    def __getattr__(self, name: str) -> None:
        return None


CONFIG: Any = Config()


def as_sent(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same turns as a client sends them: arguments of calls are a text, where rows may have an object or nothing."""
    turns = copy.deepcopy(messages)
    for call in (call for turn in turns for call in turn.get("tool_calls") or ()):
        arguments = call["function"].get("arguments")
        if not isinstance(arguments, str):
            call["function"]["arguments"] = json.dumps(arguments or {})
    return turns


@functools.cache
def tokenizer_of(family: str) -> Any:
    """A tokenizer of transformers with the family's template; no text is tokenised with it."""
    transformers = pytest.importorskip("transformers")
    words = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    found = FAMILIES[family]
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, chat_template=found.template, **found.named)


@functools.cache
def template_of(family: str) -> ChatTemplate:
    return ChatTemplate(FAMILIES[family].template, FAMILIES[family].named)


def as_trained(row: TrainingRow, family: str) -> str | None:
    """The text that a trainer writes for a row; None if the template refuses the chat."""
    template = template_of(family)
    messages = plain_messages(served_roles(row.messages, template.text))
    try:
        return template.render(messages, served_tools(row.tools)).text
    except InvalidRequest:
        return None


def as_served(body: dict[str, Any], family: str) -> str | None:
    """The text that a replica writes for a request that has gone through the API; None if the template refuses it."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.exceptions import VLLMValidationError
    from vllm.renderers.chat_utils import parse_chat_messages
    from vllm.renderers.hf import resolve_chat_template_content_format, safe_apply_chat_template

    sent = json.loads(json.dumps(validate_chat(copy.deepcopy(body))))
    request, tokenizer = ChatCompletionRequest(**sent), tokenizer_of(family)
    template, config = FAMILIES[family].template, CONFIG
    tools = [tool.model_dump() for tool in request.tools] if request.tools else None
    written = resolve_chat_template_content_format(template, tools, "auto", tokenizer, model_config=config)
    turns, _, _ = parse_chat_messages(request.messages, config, written)
    try:
        return safe_apply_chat_template(config, tokenizer, turns, tools=tools, chat_template=template, tokenize=False)
    except VLLMValidationError:
        return None


@given(chats(), TOOLS, st.booleans(), st.sampled_from(sorted(FAMILIES)))
@settings(max_examples=100, deadline=None)
def test_a_row_is_trained_as_its_request_is_served(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]], as_text: bool, family: str
) -> None:
    line = {"messages": messages, "tools": json.dumps(tools) if as_text else tools}
    body = {"model": "m", "messages": as_sent(messages)} | ({"tools": tools} if tools else {})
    try:
        validate_chat(copy.deepcopy(body))
    except InvalidRequest:
        assume(False)
    row = parse_row(json.dumps(line).encode(), 1)
    assert as_trained(row, family) == as_served(body, family)


FORMS_OF_NOTHING = ["", " ", "null", " null ", "{}", None, {}, ABSENT]


@pytest.mark.parametrize(
    "given_arguments",
    FORMS_OF_NOTHING,
    ids=["empty", "space", "null", "null in spaces", "object", "None", "dict", "absent"],
)
def test_arguments_of_nothing_are_an_empty_object_in_both(given_arguments: Any) -> None:
    function = {"name": "f0"} | ({} if given_arguments is ABSENT else {"arguments": given_arguments})
    made = {"id": "c", "type": "function", "function": function}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "content": "1", "tool_call_id": "c"},
        {"role": "assistant", "content": "One."},
    ]
    schema = {"type": "object", "properties": {"a": {"type": "string", "enum": None, "default": None}, "b": None}}
    tools = [{"type": "function", "function": {"name": "f0", "parameters": schema | {"title": None}}}]
    row = parse_row(json.dumps({"messages": messages, "tools": tools}).encode(), 1)
    for family in FAMILIES:
        text = as_trained(row, family)
        assert text == as_served({"model": "m", "messages": as_sent(messages), "tools": tools}, family), family
        # A null description is vLLM's own, of a tool without one.
        assert text is None or "null" not in text.replace('"default": null', "").replace('"description": null', "")
    texts = [as_trained(row, family) or "" for family in FAMILIES]
    assert any('"arguments": {}' in text for text in texts)
