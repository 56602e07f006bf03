"""Probe chats of the template certificate: the trainer and the replica must turn each into the same token ids.

The chats are written as OpenAI's clients send them. The trainer's side of the comparison is the code that encoded the
training rows (`shared/tokenization/tokenizer.py`); it runs at the moment of the comparison, because some templates write
the date.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

import msgspec

from shared.datasets.rows import Message
from shared.errors import InvalidRequest
from shared.tokenization.served_form import plain_messages, served_tools
from shared.tokenization.tokenizer import Tokenizer
from shared.tokenization.tool_call_forms import parser_of

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look a word up.",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string"}, "limit": {"type": "integer"}},
                "required": ["word"],
            },
        },
    },
    {"function": {"parameters": {"type": "object", "properties": {}}, "name": "list_words"}, "type": "function"},
]
CALL = {"id": "call00001", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "naïve"}'}}
QUESTION = [{"role": "user", "content": "What is a bug?"}]
"""Beginning of the chat whose answer is a call; see :func:`written_call`."""
ARGUMENTS = {"word": "bug", "limit": 2}
UNICODE = " Two  words\n\n\tand Ångström, e\u0301, 数据 🙂👩\u200d🔬, don't 12345 x_y(): <b>&amp;</b> \n"


@dataclass(frozen=True, slots=True)
class ProbeChat:
    """One chat that trainer and replica both turn into token ids.

    Attributes:
        prompt: whether the chat ends where the assistant begins, as in a request; otherwise it is complete, as in
            training.
    """

    name: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    prompt: bool = True


def _turn(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


CHATS = (
    ProbeChat("plain", [_turn("user", "What is a bug?")]),
    ProbeChat("system", [_turn("system", "Be brief."), _turn("user", "What is a bug?")]),
    ProbeChat(
        "multi-turn",
        [_turn("user", "What is a bug?"), _turn("assistant", "A mistake."), _turn("user", "And what is a test?")],
    ),
    ProbeChat("learnt", [_turn("user", "What is a bug?"), _turn("assistant", "A mistake.")], prompt=False),
    ProbeChat(
        "tools",
        [
            _turn("user", "What does naïve mean?"),
            _turn("assistant", "", tool_calls=[CALL]),
            _turn("tool", '{"meaning": "without guile"}', tool_call_id=CALL["id"]),
        ],
        tools=TOOLS,
    ),
    ProbeChat("unicode", [_turn("user", UNICODE)]),
    # `reasoning` is the engine's name for a row's `reasoning_content`.
    ProbeChat(
        "thoughts",
        [_turn("user", "What is a bug?"), _turn("assistant", "A mistake.", reasoning="Short.")],
        prompt=False,
    ),
)


class WrittenCall(NamedTuple):
    """An answer that calls a tool, as the template writes it in training.

    Attributes:
        arguments: template arguments of its prompt, added to the adapter's.
    """

    text: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EncodedChats:
    """The probe chats with the trainer's token ids.

    Attributes:
        skipped: names of chats that the template refuses.
        ends: tokens at which training and sample answers end a turn, by id.
        call: an answer that calls a tool; None if the template writes none with which a replica can be tested.
    """

    chats: list[tuple[ProbeChat, list[int]]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    ends: dict[int, str] = field(default_factory=dict)
    call: WrittenCall | None = None


def _message(turn: dict[str, Any]) -> Message:
    named = {("reasoning_content" if key == "reasoning" else key): value for key, value in turn.items()}
    return msgspec.convert(named, Message)


def encode_chats(tokenizer: Tokenizer, chats: Sequence[ProbeChat] = CHATS) -> EncodedChats:
    """Return the trainer's token ids of the probe chats."""
    texts = {end: tokenizer.backend.id_to_token(end) for end in sorted(tokenizer.end_ids)}
    ends = {end: text for end, text in texts.items() if text}
    encoded = EncodedChats(ends=ends, call=written_call(tokenizer, ends.values()))
    for chat in chats:
        try:
            messages = plain_messages(map(_message, chat.messages))
            text = tokenizer.render(messages, served_tools(chat.tools), add_generation_prompt=chat.prompt).text
            encoded.chats.append((chat, tokenizer.encode(text).ids))
        except InvalidRequest:
            # The template's own refusal, e.g. of a system turn or of tools.
            encoded.skipped.append(chat.name)
    return encoded


def written_call(tokenizer: Tokenizer, ends: Iterable[str]) -> WrittenCall | None:
    """Return the text with which the template answers ``QUESTION`` by a call, without the end of the turn.

    It is None if the template writes calls in no format that replicas know, begins an answer differently in a request
    and in training, or writes reasoning or a special token in it, which no grammar of the engine can require.
    """
    quiet = {parser: False for parser in tokenizer.argument_names if parser == "enable_thinking"}
    tools = served_tools(TOOLS)
    template = tokenizer.template_for(tools)
    template = template.with_arguments({**template.arguments, **quiet})
    name = TOOLS[0]["function"]["name"]
    call = {**CALL, "function": {"name": name, "arguments": json.dumps(ARGUMENTS)}}
    try:
        question = plain_messages(map(_message, QUESTION))
        prompt = template.render(question, tools, add_generation_prompt=True).text
        answered = plain_messages(map(_message, [*QUESTION, _turn("assistant", "", tool_calls=[call])]))
        whole = template.render(answered, tools).text
    except InvalidRequest:
        return None
    text = whole.removeprefix(prompt) if whole.startswith(prompt) else ""
    for end in ends:
        text = text.partition(end)[0]
    special = {token for token, added in tokenizer.backend.get_added_tokens_decoder().items() if added.special}
    parser = parser_of(text, name, tokenizer.backend)
    is_forceable = "</think>" not in text and special.isdisjoint(tokenizer.encode(text).ids)
    return WrittenCall(text, quiet) if parser and is_forceable else None


def first_difference(ours: Sequence[int], theirs: Sequence[int] | None) -> dict[str, Any] | None:
    """Return the first position where two lists of token ids differ, with both ids (None past an end), or None."""
    if theirs is None:
        return {"position": 0, "trainer_id": ours[0] if ours else None, "server_id": None, "refused": True}
    for position, (mine, other) in enumerate(zip_longest(ours, theirs)):
        if mine != other:
            return {"position": position, "trainer_id": mine, "server_id": other}
    return None
