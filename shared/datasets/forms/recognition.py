"""Recognise the form of a row by its keys and their values, so that errors can name it and conversions can read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from shared.contract.choices import MethodType

Row = Mapping[str, Any]
_FIRST_ROW_BYTES = 1_000_003


class RowForm(StrEnum):
    """The forms that rows are written in."""

    MESSAGES = "messages"
    SHAREGPT = "sharegpt"
    ALPACA = "alpaca"
    QUESTION_ANSWER = "question-answer"
    PROMPT_COMPLETION = "prompt-completion"
    PREFERENCE = "preference"
    RANKING = "ranking"
    KTO = "kto"
    ANTHROPIC = "anthropic"
    BEDROCK = "bedrock"
    GEMINI = "gemini"
    LOG = "log"
    TEXT = "text"


DESCRIPTIONS: dict[RowForm, str] = {
    RowForm.MESSAGES: "the chat form (`messages` with `role` and `content`)",
    RowForm.SHAREGPT: "ShareGPT's form (a list of turns with `from` and `value`, or with roles like `human` and `gpt`)",
    RowForm.ALPACA: "Alpaca's form (`instruction`, `input`, `output`, and `history`)",
    RowForm.QUESTION_ANSWER: "the question and answer form",
    RowForm.PROMPT_COMPLETION: "TRL's conversational form (`prompt` and `completion`, or other names of a question and an answer, as turns)",
    RowForm.PREFERENCE: "the form of preferences (`chosen` and `rejected`), which are for DPO, not for supervised tuning",
    RowForm.RANKING: "the form of rankings (a question and `completions`, a list of answers with scores)",
    RowForm.KTO: "KTO's form (`prompt` and `completion`, or `messages`, with `label`)",
    RowForm.ANTHROPIC: "Anthropic's form (`messages` with blocks like `tool_use` and `tool_result`)",
    RowForm.BEDROCK: "Amazon Bedrock's Converse form (`messages` with blocks like `text` and `toolUse`, without `type`)",
    RowForm.GEMINI: "Gemini's form (`contents` with `parts`)",
    RowForm.LOG: "the form of a log (a request with `messages`, and its response with `choices`)",
    RowForm.TEXT: "the plain form (one `text`), which has no answer to learn unless chat markup divides it into turns",
}
TURN_LISTS = ("conversations", "conversation", "messages", "turns", "dialog", "dialogue", "chat")
SPEAKERS = ("from", "role", "speaker")
UTTERANCES = ("value", "content", "text")
ROLES: dict[str, str] = {
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bot", "model", "ai", "chatbot", "bing", "bard"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function_response", "ipython"), "tool"),
    **dict.fromkeys(("function_call", "tool_call"), "function_call"),
    "system": "system",
    "developer": "developer",
    "function": "function",
}
"""Names that programs give to speakers; ``function_call`` is an assistant's turn with only a call."""
OWN_ROLES = frozenset({"user", "assistant", "tool", "system", "developer", "function"})
QUESTIONS = ("question", "query", "prompt", "instruction", "input", "q", "human", "user")
ANSWERS = ("answer", "response", "output", "completion", "a", "assistant", "gpt", "reply", "target")
PROMPTS = ("prompt", *QUESTIONS)
COMPLETIONS = ("completion", "response", *ANSWERS)
"""Names of a question and of an answer that are turns, TRL's first."""
CHOSEN, REJECTED = "chosen", "rejected"
PREFERRED = ("preferred_output", "preferred_completion")
RANKED_ANSWERS = ("completions", "responses", "generations", "answers")
RANKED_TEXTS = ("response", "text", "content", "completion", "answer", "output")
"""Keys of the text in a list of answers."""
SCORE_KEYS = ("score", "fine-grained_score", "overall_score", "rating")
"""Keys of the score in a list of answers. UltraFeedback's ``overall_score`` is known to have wrong values."""
SCORE_LISTS = ("scores", "ratings")
MEDIA = ("images", "image", "videos", "video", "audios", "audio")
REQUESTS = ("request", "request_body", "body", "input", "inputs")
RESPONSES = ("response", "response_body", "output", "outputs")
"""Keys of a request and of its response in logs."""
ANTHROPIC_BLOCKS = frozenset(("tool_use", "tool_result", "thinking", "redacted_thinking"))
"""Types of Anthropic's blocks that OpenAI's chats do not have."""
BEDROCK_BLOCKS = frozenset(
    ("text", "toolUse", "toolResult", "reasoningContent", "image", "document", "video", "cachePoint", "guardContent")
)
"""Keys of Bedrock's blocks, each of which names what the block holds."""
PLACEHOLDERS = ("<image>", "<video>", "<audio>")


def recognise(row: Row) -> RowForm | None:
    """Return the form of a row; None if it is unknown."""
    keys = {key.lower(): row[key] for key in row if row[key] is not None}
    contents = keys.get("contents")
    if {CHOSEN, REJECTED} <= keys.keys() or ("input" in keys and not keys.keys().isdisjoint(PREFERRED)):
        return RowForm.PREFERENCE
    if (
        isinstance(keys.get("label"), bool)
        and "prompt" in keys
        and not keys.keys().isdisjoint(("completion", "response"))
    ):
        return RowForm.KTO
    if isinstance(contents, list) and any(isinstance(turn, dict) and "parts" in turn for turn in contents):
        return RowForm.GEMINI
    if form := _form_of_turns(row):
        return form
    # A request that failed may have null as its response.
    is_log = logged_exchange({key.lower(): value for key, value in row.items()})
    return RowForm.LOG if is_log else _form_of_pair(keys)


def rates_its_answer(row: Row) -> bool:
    """Return whether a row rates its only answer as good or bad: in KTO's form, or as a chat with `label`."""
    form = recognise(row)
    is_rated_chat = form is RowForm.MESSAGES and "messages" in row and isinstance(row.get("label"), bool)
    return form is RowForm.KTO or is_rated_chat


def method_of_file(path: Path) -> MethodType:
    """Return the training method that the first row of a file is for: supervised for one that cannot be recognised."""
    with path.open("rb") as file:
        # Read in pieces, so that a file without a line end is not read as a whole.
        pieces = iter(partial(file.readline, _FIRST_ROW_BYTES), b"")
        line = next((piece for piece in pieces if not piece.isspace()), b"")
    try:
        row = msgspec.json.decode(line.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return MethodType.SUPERVISED
    if not isinstance(row, dict):
        return MethodType.SUPERVISED
    if rates_its_answer(row):
        return MethodType.KTO
    return MethodType.DPO if recognise(row) is RowForm.PREFERENCE else MethodType.SUPERVISED


def _form_of_pair(keys: Row) -> RowForm | None:
    """Return the form of a row without a list of turns; its keys are in lower case."""
    prompt, completion = (next((keys[name] for name in names if name in keys), "") for names in (PROMPTS, COMPLETIONS))
    if has_pair(keys) and (_are_turns(prompt) or _are_turns(completion)):
        return RowForm.PROMPT_COMPLETION
    if {"instruction", "output"} <= keys.keys():
        return RowForm.ALPACA
    if has_pair(keys):
        return RowForm.QUESTION_ANSWER
    if _is_ranking(keys):
        return RowForm.RANKING
    return RowForm.TEXT if any(isinstance(keys.get(name), str) for name in ("text", "content")) else None


def _are_turns(value: Any) -> bool:
    """Return whether a value is a turn, or a list of turns."""
    turns = value if isinstance(value, list) else [value]
    return bool(turns) and all(isinstance(turn, dict) and str(speaker_of(turn)).lower() in ROLES for turn in turns)


def logged_exchange(row: Row) -> tuple[tuple[str, Row], tuple[str, Row]] | None:
    """Return a logged chat request and its response, each with its key in the row; None if the row is not a log.

    The response of a request that failed is empty.
    """
    request = next(((name, body) for name in REQUESTS if _is_request(body := _body(row.get(name)))), None)
    response = next((name for name in RESPONSES if name in row), None)
    return (request, (response, _body(row[response]))) if request and response else None


def _body(value: Any) -> Row:
    """Return the body of a request or a response, which some logs have under ``body`` or as JSON in a string."""
    if isinstance(value, str) and value.startswith("{"):
        with suppress(msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            value = msgspec.json.decode(value)
    if not isinstance(value, dict):
        return {}
    body = value.get("body")
    return _body(body) if isinstance(body, dict | str) else value


def _is_request(body: Row) -> bool:
    return isinstance(body.get("messages"), list)


def _is_ranking(keys: Row) -> bool:
    """Return whether a row, with its keys in lower case, has a question and a list of answers with scores."""
    answers: list[Any] = next((keys[name] for name in RANKED_ANSWERS if isinstance(keys.get(name), list)), [])
    has_scores = any(isinstance(keys.get(name), list) for name in SCORE_LISTS)
    has_scores = has_scores or any(
        isinstance(answer, dict) and not answer.keys().isdisjoint(SCORE_KEYS) for answer in answers
    )
    return bool(answers) and has_scores and any(name in keys for name in QUESTIONS)


def has_pair(keys: Iterable[str]) -> bool:
    """Return whether keys, in lower case, name a question and an answer."""
    there = set(keys)
    return any(name in there for name in QUESTIONS) and any(name in there for name in ANSWERS)


def turns_of(row: Row) -> tuple[str, list[Any]] | None:
    """Return the list of turns of a row and its key; None if it has none."""
    for name in TURN_LISTS:
        turns = row.get(name)
        if isinstance(turns, list) and turns and all(isinstance(turn, dict) for turn in turns):
            return name, turns
    return None


def speaker_of(turn: Row) -> Any:
    """Return the name of a turn's speaker, unchanged; None if the turn names none."""
    return next((turn[name] for name in SPEAKERS if turn.get(name) is not None), None)


def refers_to_media(row: Row, texts: Iterable[Any]) -> bool:
    """Return whether a row's strings refer to its images, sounds or films: without them the answer would be a guess."""
    has_media = any(row.get(name) not in (None, "", [], {}) for name in MEDIA)
    return has_media and any(mark in text for text in texts if isinstance(text, str) for mark in PLACEHOLDERS)


def is_foreign(row: Row) -> RowForm | None:
    """Return the form of a row if the reader of training files does not accept it unchanged; else None."""
    form = recognise(row)
    if form is RowForm.MESSAGES:
        return None
    if form is RowForm.QUESTION_ANSWER and not row.keys().isdisjoint(
        ("prompt", "instruction", "input", "response", "output", "completion")
    ):
        own = not row.keys().isdisjoint(("prompt", "instruction", "input"))
        own = own and not row.keys().isdisjoint(("response", "output", "completion"))
        return None if own else form
    if form is RowForm.ALPACA and not row.get("history"):
        return None
    return form


def _form_of_turns(row: Row) -> RowForm | None:
    if (named_turns := turns_of(row)) is None:
        return None
    name, turns = named_turns
    roles = [turn.get("role") for turn in turns]
    own = all(isinstance(role, str) and role in OWN_ROLES for role in roles)
    if own and name in ("messages", "turns"):
        return (name == "messages" and _form_of_blocks(turns)) or RowForm.MESSAGES
    speakers = [speaker for turn in turns if isinstance(speaker := speaker_of(turn), str)]
    if name == "messages" and all(
        isinstance(role, str) and (role in OWN_ROLES or role.lower() not in ROLES) for role in roles
    ):
        return (
            RowForm.MESSAGES if OWN_ROLES.intersection(speakers) else None
        )  # a role that no program gives is a mistake
    return RowForm.SHAREGPT if any(speaker.lower() in ROLES for speaker in speakers) else None


def _form_of_blocks(turns: Iterable[Row]) -> RowForm | None:
    """Return the form of turns with blocks that OpenAI's chats do not have."""
    contents = [turn["content"] for turn in turns if isinstance(turn.get("content"), list)]
    blocks = [block for content in contents for block in content if isinstance(block, dict)]
    types = {block["type"] for block in blocks if isinstance(block.get("type"), str)}
    if types & ANTHROPIC_BLOCKS:
        return RowForm.ANTHROPIC
    is_bedrock = bool(blocks) and not types and all(block.keys() & BEDROCK_BLOCKS for block in blocks)
    return RowForm.BEDROCK if is_bedrock else None
