"""Chat templates as models are published with them: their chats, prompts and answers, next to those of other programs.

TRL's package has copies of the templates in which its authors have marked what an assistant is trained on. transformers
writes the chats.
"""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shared.datasets.rows import Message, TrainingRow
from shared.errors import InvalidRequest
from shared.tokenization.assistant_spans import find_assistant_spans
from shared.tokenization.labels import IGNORED, LabelledRow
from shared.tokenization.template_arguments import ChatOptions
from shared.tokenization.tokenizer import Tokenizer
from tests.support.encoding import encode_row
from tests.support.published_templates import PUBLISHED, make_published_base
from tests.support.template_families import CASES
from tests.system.fetched import published_templates

pytestmark = [pytest.mark.torch, pytest.mark.network]

END = {name: "<|eot_id|>" if name.startswith("llama") else "<|im_end|>" for name in PUBLISHED}
ARGUMENTS = {
    "qwen3": ["enable_thinking"],
    "qwen3_5_think": ["enable_thinking"],
    "qwen3_5_nothink": ["enable_thinking"],
    "qwen3_6": ["enable_thinking", "preserve_thinking"],
    "qwen3_8": ["enable_thinking", "preserve_thinking", "reasoning_effort"],
}
# Mens writes a developer's later turn into the system's, as vLLM does, and transformers does not.
CHATS = {name: copy.deepcopy(case) for name, case in CASES.items() if name != "late_developer"}
for chat in CHATS.values():
    for tool in chat.get("tools", ()):
        # vLLM and Mens write null for a description that is missing, and the name before it.
        tool["function"] = {"name": "add", "description": "Adds.", "parameters": tool["function"]["parameters"]}
SETTINGS: dict[str, list[Any]] = {
    "enable_thinking": [True, False],
    "preserve_thinking": [True, False],
    "reasoning_effort": ["low", "medium"],
}
UNMARKED = {"llama3_1", "llama3_2"}
"""TRL has no copies of these with marks."""
FEWEST, FEWEST_MARKED = 11, 6
"""Least numbers of chats that each template writes, and of those that TRL's copy writes equally."""


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("published")
    return {name: make_published_base(folder / name, name) for name in PUBLISHED}


@pytest.fixture(scope="module")
def tokenizers(bases: dict[str, Path]) -> dict[str, Tokenizer]:
    return {name: Tokenizer.load(base) for name, base in bases.items()}


@pytest.fixture(scope="module")
def others(bases: dict[str, Path]) -> dict[str, Any]:
    from transformers import AutoTokenizer

    return {name: AutoTokenizer.from_pretrained(base) for name, base in bases.items()}


def row_of(case: str) -> TrainingRow:
    return TrainingRow(1, [Message(**turn) for turn in CHATS[case]["messages"]], tools=CHATS[case].get("tools"))


def plain_chat(case: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Return the chat as templates expect it: arguments as objects, a developer as the system."""
    messages = [{key: value for key, value in turn.items() if key != "weight"} for turn in CHATS[case]["messages"]]
    messages = copy.deepcopy(messages)
    for message in messages:
        if message["role"] == "developer":
            message["role"] = "system"
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return messages, CHATS[case].get("tools")


def parts(case: str) -> list[str]:
    """Return the strings that a complete text of the chat contains."""
    found = []
    for turn in CHATS[case]["messages"]:
        found += [(turn["content"] or "").strip(), turn.get("reasoning_content", "")]
        found += [call["function"]["name"] for call in turn.get("tool_calls", ())]
    return found


def encoded(tokenizer: Tokenizer) -> dict[str, LabelledRow]:
    """Return the rows that a template writes completely."""
    rows = {}
    for case in CHATS:
        with suppress(InvalidRequest):
            rows[case] = encode_row(tokenizer, row_of(case), 10_000)
    return rows


def learnt_text(tokenizer: Tokenizer, row: LabelledRow) -> str:
    return tokenizer.decode([label for label in row.labels if label != IGNORED])


@pytest.mark.parametrize("case", CHATS)
@pytest.mark.parametrize("name", PUBLISHED)
def test_rows_are_written_as_transformers_writes_them_or_have_a_part_that_it_loses(
    tokenizers: dict[str, Tokenizer], others: dict[str, Any], name: str, case: str
) -> None:
    messages, tools = plain_chat(case)

    def written() -> list[int]:
        return list(others[name].apply_chat_template(messages, tools=tools, return_dict=True)["input_ids"])

    try:
        ours = find_assistant_spans(tokenizers[name], row_of(case))
    except InvalidRequest as refusal:
        if "refuses this chat" in refusal.message:
            with pytest.raises(Exception, match=r".+"):
                written()
            return
        text = others[name].decode(written())
        assert any(part not in text for part in parts(case)), refusal.message
        return
    assert tokenizers[name].encode(ours.text).ids == written()


@pytest.mark.parametrize("name", PUBLISHED)
def test_answers_are_learnt_and_nothing_else(tokenizers: dict[str, Tokenizer], name: str) -> None:
    learnt = {case: learnt_text(tokenizers[name], row) for case, row in encoded(tokenizers[name]).items()}
    assert len(learnt) >= FEWEST
    for case, text in learnt.items():
        turns = CHATS[case]["messages"]
        answer = turns[-1]["content"].rpartition("</think>")[2].strip()
        assert text.removesuffix(END[name]).rstrip().endswith(answer), case
        context = [turn["content"].strip() for turn in turns if turn["role"] != "assistant" or turn.get("weight") == 0]
        assert not [content for content in context if content in text.replace(answer, "")], case


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in UNMARKED])
def test_what_is_learnt_is_what_trl_marks_less_the_prompt_and_what_follows_the_end(
    tokenizers: dict[str, Tokenizer], others: dict[str, Any], name: str
) -> None:
    """TRL also marks the beginning of an answer that the prompt has already (``<think>``), and the line break after its end."""
    marks = (published_templates() / f"{name}_training.jinja").read_text(encoding="utf-8")
    compared = 0
    for case, row in encoded(tokenizers[name]).items():
        messages, tools = plain_chat(case)
        trl = others[name].apply_chat_template(
            messages, tools=tools, chat_template=marks, return_dict=True, return_assistant_tokens_mask=True
        )
        marked = {place for place, is_marked in enumerate(trl["assistant_masks"]) if is_marked}
        # TRL's copies keep thoughts that the published templates drop, and lose their marks where an answer begins with
        # white space. Weights are not the template's.
        if trl["input_ids"] != row.ids or not marked or case == "weight_0":
            continue
        learnt = {place for place, label in enumerate(row.labels) if label != IGNORED}
        assert learnt <= marked, case
        more = others[name].decode([row.ids[place] for place in sorted(marked - learnt)])
        assert not more.replace("<think>", "").replace("</think>", "").strip(), case
        compared += 1
    assert compared >= FEWEST_MARKED


@pytest.mark.parametrize("name", PUBLISHED)
def test_arguments_are_known(tokenizers: dict[str, Tokenizer], name: str) -> None:
    assert [argument for argument in tokenizers[name].argument_names if argument in SETTINGS] == ARGUMENTS.get(name, [])


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [(name, argument, value) for name in ARGUMENTS for argument in ARGUMENTS[name] for value in SETTINGS[argument]],
)
@pytest.mark.parametrize("case", ["single", "system_multi", "reasoning", "reasoned_and_called"])
def test_arguments_write_what_transformers_writes(
    bases: dict[str, Path], others: dict[str, Any], name: str, argument: str, value: Any, case: str
) -> None:
    tokenizer = Tokenizer.load(bases[name], ChatOptions({argument: value}))
    messages, tools = plain_chat(case)
    for chat, prompt in ((messages, False), (messages[:-1], True)):
        theirs = others[name].apply_chat_template(
            chat, tools=tools, add_generation_prompt=prompt, tokenize=False, **{argument: value}
        )
        assert tokenizer.render(chat, tools, add_generation_prompt=prompt).text == theirs
