"""Template arguments and thoughts: the names that a base accepts, the text that they produce, and what is trained on.

The templates of Qwen3, Qwen3.5, Qwen3.6 and Qwen3.8 are imitations (`tests/support/template_families.py`);
`test_published_templates.py` has the published ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.contract.choices import ThoughtsRule
from shared.datasets.reader import Message, TrainingRow
from shared.errors import Code, ContractRejected, InvalidRequest
from shared.tokenization.assistant_spans import find_assistant_spans
from shared.tokenization.chat_template import ChatTemplate
from shared.tokenization.request_arguments import with_template_arguments
from shared.tokenization.served_form import plain_messages, served_tools
from shared.tokenization.template_arguments import ChatOptions
from shared.tokenization.tokenizer import Tokenizer
from tests.support.template_families import CALL, FAMILIES, TOOLS, make_base, turn

KNOWN = {
    "qwen3": ["enable_thinking"],
    "qwen35": ["enable_thinking"],
    "qwen36": ["enable_thinking", "preserve_thinking"],
    "qwen38": ["enable_thinking", "preserve_thinking", "reasoning_effort"],
}
ASSISTANT, THINK, CLOSED = "<|im_start|>assistant\n", "<think>\n", "<think>\n\n</think>\n\n"
PROMPTS: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3", {}, ""),
    ("qwen3", {"enable_thinking": True}, ""),
    ("qwen3", {"enable_thinking": False}, CLOSED),
    ("qwen35", {}, CLOSED),
    ("qwen35", {"enable_thinking": True}, THINK),
    ("qwen36", {}, THINK),
    ("qwen36", {"enable_thinking": False}, CLOSED),
    ("qwen38", {}, THINK),
    ("qwen38", {"enable_thinking": False}, CLOSED),
]
THOUGHTFUL = [
    turn("user", "One?"),
    turn("assistant", "First answer.", reasoning_content="hm, so"),
    turn("user", "Two?"),
    turn("assistant", "Second answer.", reasoning_content="well, then"),
]
CALLING = [
    turn("user", "1 + 1?"),
    turn("assistant", None, tool_calls=[CALL], reasoning_content="I must add."),
    turn("tool", "2", tool_call_id="c1"),
    turn("assistant", "Two.", reasoning_content="It says two."),
]
EVERY: list[tuple[str, dict[str, Any]]] = [
    *((family, arguments) for family, arguments, _ in PROMPTS),
    ("qwen36", {"preserve_thinking": True}),
    ("qwen38", {"preserve_thinking": False, "reasoning_effort": "low"}),
    ("qwen38", {"reasoning_effort": "medium"}),
]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bases")
    return {name: make_base(folder / name, FAMILIES[name]) for name in (*KNOWN, "chatml_marked")}


def load(bases: dict[str, Path], family: str, thoughts: str = "learn", **arguments: Any) -> Tokenizer:
    return Tokenizer.load(bases[family], ChatOptions(arguments, ThoughtsRule(thoughts)))


def row(messages: list[dict[str, Any]], tools: Any = None) -> TrainingRow:
    return TrainingRow(7, [Message(**message) for message in messages], tools=tools)


def learnt(tokenizer: Tokenizer, messages: list[dict[str, Any]], tools: Any = None) -> list[str]:
    chat = find_assistant_spans(tokenizer, row(messages, tools))
    return [chat.text[start:end] for start, end in chat.spans]


# -- names


@pytest.mark.parametrize("family", FAMILIES)
def test_names_that_a_template_knows(family: str) -> None:
    template = ChatTemplate(FAMILIES[family].template, FAMILIES[family].named)
    assert sorted(template.argument_names) == KNOWN.get(family, [])


@pytest.mark.parametrize(
    ("template", "known"),
    [
        ("{% set x = x if x is defined else 1 %}{{ x }}", ["x"]),
        ("{% if y is not defined %}{% set y = 1 %}{% endif %}{{ y }}", ["y"]),
        ("{% set z = z | default(1) %}{{ z }}", ["z"]),
        ("{% for m in messages %}{% if m.a %}{% set q = 1 %}{% endif %}{{ q }}{% endfor %}", []),
        (
            "{{ bos_token }}{{ strftime_now('%d') }}{% macro f(a) %}{{ a }}{{ k }}{% endmacro %}{{ namespace(i=1).i }}",
            ["k"],
        ),
        ("{{ messages }}{{ tools }}{{ documents }}{{ add_generation_prompt }}{{ continue_final_message }}", []),
    ],
)
def test_an_argument_is_read_and_not_set_without_a_look(template: str, known: list[str]) -> None:
    assert sorted(ChatTemplate(template, {}).argument_names) == known


@pytest.mark.torch
@pytest.mark.parametrize("family", KNOWN)
def test_vllm_passes_the_known_names_on(family: str) -> None:
    """It filters by its own rule what a request's chat_template_kwargs has."""
    from vllm.renderers.hf import _resolve_chat_template_kwargs

    assert set(KNOWN[family]) <= _resolve_chat_template_kwargs(FAMILIES[family].template)


# -- refusals


@pytest.mark.parametrize(
    ("family", "arguments", "code", "words"),
    [
        (
            "qwen3",
            {"reasoning_effort": "low"},
            Code.TEMPLATE_ARGUMENT_UNKNOWN,
            "Use one of its arguments: enable_thinking.",
        ),
        ("chatml_marked", {"enable_thinking": False}, Code.TEMPLATE_ARGUMENT_UNKNOWN, "the template does not have any"),
        ("qwen3", {"add_generation_prompt": False}, Code.TEMPLATE_ARGUMENT_INVALID, "set by the server"),
        ("qwen3", {"enable_thinking": "false"}, Code.TEMPLATE_ARGUMENT_INVALID, "Write false without quotation marks"),
        ("qwen38", {"reasoning_effort": "high"}, Code.TEMPLATE_ARGUMENT_INVALID, "unexpected reasoning effort high"),
    ],
)
def test_refusals(bases: dict[str, Path], family: str, arguments: dict[str, Any], code: Code, words: str) -> None:
    with pytest.raises(ContractRejected) as refused:
        load(bases, family, **arguments)
    assert refused.value.code == code
    assert words in f"{refused.value.message} {refused.value.remedy}"
    assert (refused.value.param or "").startswith("data.template_arguments")


def test_an_argument_that_changes_nothing_is_noted(bases: dict[str, Path]) -> None:
    assert load(bases, "qwen38", reasoning_effort="xhigh").notes == [
        'The template argument reasoning_effort = "xhigh" does not change any chat of this base.'
    ]
    assert load(bases, "qwen38", reasoning_effort="low", enable_thinking=True).notes == [
        "The template argument enable_thinking = true does not change any chat of this base."
    ]
    assert load(bases, "qwen36", preserve_thinking=True, enable_thinking=False).notes == []


# -- digests


def test_a_digest_names_arguments_and_thoughts_only_where_there_are_some(bases: dict[str, Path]) -> None:
    plain = Tokenizer.load(bases["qwen36"]).digest
    assert load(bases, "qwen36").digest == plain
    others = {
        load(bases, "qwen36", enable_thinking=False).digest,
        load(bases, "qwen36", enable_thinking=True).digest,
        load(bases, "qwen36", thoughts="drop").digest,
        load(bases, "qwen36", thoughts="context").digest,
    }
    assert len(others | {plain}) == 5


# -- what is written


@pytest.mark.parametrize(("family", "arguments", "end"), PROMPTS)
def test_prompts(bases: dict[str, Path], family: str, arguments: dict[str, Any], end: str) -> None:
    text = load(bases, family, **arguments).render([turn("user", "Hi")], add_generation_prompt=True).text
    assert text.endswith(f"Hi<|im_end|>\n{ASSISTANT}{end}")


def test_effort_is_a_system_turn_unless_it_is_medium_or_nothing_is_thought(bases: dict[str, Path]) -> None:
    def begins(**arguments: Any) -> str:
        return load(bases, "qwen38", **arguments).render([turn("user", "Hi")]).text.partition("<|im_end|>")[0]

    assert "Effort: xhigh" in begins()
    assert "Effort: low" in begins(reasoning_effort="low")
    assert begins(reasoning_effort="medium") == begins(enable_thinking=False) == "<|im_start|>user\nHi"


@pytest.mark.torch
@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize(("family", "arguments"), EVERY)
def test_text_and_ids_equal_those_of_transformers(
    bases: dict[str, Path], family: str, arguments: dict[str, Any], prompt: bool
) -> None:
    from transformers import AutoTokenizer

    ours, theirs = load(bases, family, **arguments), AutoTokenizer.from_pretrained(bases[family])
    for messages, tools in ((THOUGHTFUL, None), (CALLING, TOOLS), ([turn("system", "Be kind."), *THOUGHTFUL], None)):
        plain, how = (
            plain_messages(row(messages).messages),
            {"tools": served_tools(tools), "add_generation_prompt": prompt},
        )
        text = ours.render(plain, **how).text
        assert text == theirs.apply_chat_template(plain, tokenize=False, **how, **arguments)
        assert ours.encode(text).ids == theirs.apply_chat_template(plain, return_dict=False, **how, **arguments)


# -- what is learnt


def test_thoughts_are_learnt_with_the_answer(bases: dict[str, Path]) -> None:
    assert learnt(load(bases, "qwen3"), THOUGHTFUL) == ["<think>\nwell, then\n</think>\n\nSecond answer.<|im_end|>"]
    kept = load(bases, "qwen36", preserve_thinking=True)
    assert learnt(kept, THOUGHTFUL) == [
        "hm, so\n</think>\n\nFirst answer.<|im_end|>",
        "well, then\n</think>\n\nSecond answer.<|im_end|>",
    ]
    # A prompt that closes the thoughts is not how such an answer begins.
    assert find_assistant_spans(load(bases, "qwen35"), row(THOUGHTFUL)).prompt_differs
    assert not find_assistant_spans(load(bases, "qwen35", enable_thinking=True), row(THOUGHTFUL)).prompt_differs


@pytest.mark.parametrize("family", KNOWN)
def test_thoughts_may_be_context(bases: dict[str, Path], family: str) -> None:
    tokenizer = load(bases, family, thoughts="context")
    assert "well, then" in find_assistant_spans(tokenizer, row(THOUGHTFUL)).text
    assert learnt(tokenizer, THOUGHTFUL)[-1] == "Second answer.<|im_end|>"
    call, answer = learnt(tokenizer, CALLING, TOOLS)
    assert call.startswith("<tool_call>")
    assert call.endswith("</tool_call><|im_end|>")
    assert answer == "Two.<|im_end|>"


def test_context_is_found_behind_marks_too(bases: dict[str, Path], tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant\n{% generation %}"
        "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|im_end|>{% endgeneration %}"
        "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    folder = make_base(tmp_path / "marked", FAMILIES["qwen3"], template)
    assert learnt(Tokenizer.load(folder), THOUGHTFUL)[0] == "<think>hm, so</think>First answer.<|im_end|>"
    context = Tokenizer.load(folder, ChatOptions(thoughts=ThoughtsRule.CONTEXT))
    assert learnt(context, THOUGHTFUL) == ["First answer.<|im_end|>", "Second answer.<|im_end|>"]


def test_thoughts_may_be_dropped(bases: dict[str, Path]) -> None:
    without = [{key: value for key, value in message.items() if key != "reasoning_content"} for message in THOUGHTFUL]
    for family in bases:
        dropped = find_assistant_spans(load(bases, family, thoughts="drop"), row(THOUGHTFUL))
        assert dropped == find_assistant_spans(load(bases, family), row(without))


def test_the_last_answers_thoughts_must_be_written(bases: dict[str, Path]) -> None:
    with pytest.raises(
        InvalidRequest, match=r"In line 7: .*thoughts of the last answer; data.thoughts = drop"
    ) as refused:
        find_assistant_spans(load(bases, "chatml_marked"), row(THOUGHTFUL))
    assert refused.value.code == Code.TEMPLATE_UNSUPPORTED
    assert "data.template_arguments" in (refused.value.remedy or "")
    # By shape too: these thoughts are a part of the question.
    with pytest.raises(InvalidRequest, match="thoughts of the last answer"):
        find_assistant_spans(
            load(bases, "chatml_marked"), row([turn("user", "One?"), turn("assistant", "1", reasoning_content="One")])
        )


def test_earlier_thoughts_may_be_left_out(bases: dict[str, Path]) -> None:
    assert find_assistant_spans(load(bases, "qwen36"), row(THOUGHTFUL)).left_out == {"thoughts"}
    assert not find_assistant_spans(load(bases, "qwen36", preserve_thinking=True), row(THOUGHTFUL)).left_out


# -- requests

OFF = {"enable_thinking": False}
LOW = {"reasoning_effort": "low", "preserve_thinking": True}


@pytest.mark.parametrize(
    ("stored", "body", "sent"),
    [
        (OFF, {}, OFF),
        (OFF, {"chat_template_kwargs": {"enable_thinking": True}}, {"enable_thinking": True}),
        (OFF, {"chat_template_kwargs": {"other": 1}}, {"enable_thinking": False, "other": 1}),
        (OFF, {"chat_template_kwargs": None}, OFF),
        (OFF, {"reasoning_effort": "high"}, {}),
        (OFF, {"reasoning_effort": None}, OFF),
        (LOW, {"reasoning": {"effort": "medium"}}, {"preserve_thinking": True}),
        (LOW, {"reasoning": {"summary": None}}, LOW),
        (LOW, {"chat_template_kwargs": OFF}, LOW | OFF),
    ],
)
def test_a_request_wins_over_what_is_stored(stored: dict[str, Any], body: dict[str, Any], sent: dict[str, Any]) -> None:
    asked = {"model": "a", "messages": [], **body}
    found = with_template_arguments("/v1/chat/completions", asked, stored)
    assert found == asked | {"chat_template_kwargs": sent}
    assert "chat_template_kwargs" not in asked or asked["chat_template_kwargs"] == body["chat_template_kwargs"]


@pytest.mark.parametrize(
    ("path", "body", "stored"),
    [
        ("/v1/chat/completions", {"messages": []}, {}),
        ("/v1/completions", {"prompt": "a"}, OFF),
        ("/tokenize", {"prompt": "a"}, OFF),
        ("/v1/chat/completions", {"messages": [], "chat_template_kwargs": "no object"}, OFF),
    ],
)
def test_other_requests_stay_as_they_are(path: str, body: dict[str, Any], stored: dict[str, Any]) -> None:
    assert with_template_arguments(path, body, stored) is body
