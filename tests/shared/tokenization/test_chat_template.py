"""Chat templates of thirteen families: the text, its supervised parts, and what no template may do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.datasets.reader import Message, TrainingRow
from shared.errors import Code, InvalidRequest
from shared.tokenization.assistant_spans import find_assistant_spans
from shared.tokenization.chat_template import MAX_TEXT, ChatTemplate
from shared.tokenization.labels import IGNORED, label_chats
from shared.tokenization.served_form import plain_messages
from shared.tokenization.tokenizer import Tokenizer
from tests.support.encoding import encode_row, sample_view
from tests.support.template_families import CASES, FAMILIES, TEMPLATES, make_base

GOLDEN: dict[str, dict[str, dict[str, Any]]] = json.loads((TEMPLATES / "golden.json").read_text(encoding="utf-8"))
EVERY = [(family, case) for family in FAMILIES for case in CASES]
LONG = 100_000
QUESTION = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("families")
    return {name: make_base(folder / name, family) for name, family in FAMILIES.items()}


@pytest.fixture(scope="session")
def tokenizers(bases: dict[str, Path]) -> dict[str, Tokenizer]:
    return {name: Tokenizer.load(folder) for name, folder in bases.items()}


def row_of(case: str, line: int = 7) -> TrainingRow:
    return TrainingRow(line, [Message(**turn) for turn in CASES[case]["messages"]], tools=CASES[case].get("tools"))


def runs(tokenizer: Tokenizer, row: TrainingRow) -> list[str]:
    """The supervised tokens, decoded, one text for each unbroken run."""
    return [text for text, supervised in pieces(tokenizer, row) if supervised]


def pieces(tokenizer: Tokenizer, row: TrainingRow) -> list[tuple[str, bool]]:
    found: list[tuple[list[int], bool]] = []
    example = encode_row(tokenizer, row, LONG)
    for id_, label in zip(example.ids, example.labels, strict=True):
        if not found or found[-1][1] != (label != IGNORED):
            found.append(([], label != IGNORED))
        found[-1][0].append(id_)
    return [(tokenizer.decode(ids), supervised) for ids, supervised in found]


# -- golden


def test_every_template_has_golden_texts() -> None:
    assert {path.stem for path in TEMPLATES.glob("*.jinja")} == set(FAMILIES) == set(GOLDEN)
    assert all(set(cases) == set(CASES) for cases in GOLDEN.values())


@pytest.mark.parametrize(("family", "case"), EVERY)
def test_golden(tokenizers: dict[str, Tokenizer], family: str, case: str) -> None:
    golden, tokenizer = GOLDEN[family][case], tokenizers[family]
    if "refused" in golden:
        with pytest.raises(InvalidRequest) as refused:
            find_assistant_spans(tokenizer, row_of(case))
        assert refused.value.code == Code.TEMPLATE_UNSUPPORTED
        assert refused.value.message == golden["refused"].replace("line 1:", "line 7:")
        assert refused.value.details == {"line": 7}
        return
    chat = find_assistant_spans(tokenizer, row_of(case))
    found = {"text": chat.text, "learnt": runs(tokenizer, row_of(case)), "method": chat.method}
    found |= {"last_turn_only": chat.last_turn_only, "prompt_differs": chat.prompt_differs}
    assert found == golden


@pytest.mark.parametrize(("family", "case"), [(f, c) for f, c in EVERY if "refused" not in GOLDEN[f][c]])
def test_every_supervised_answer_ends_with_a_stop_token(
    tokenizers: dict[str, Tokenizer], family: str, case: str
) -> None:
    tokenizer = tokenizers[family]
    [labelled] = label_chats(tokenizer, [find_assistant_spans(tokenizer, row_of(case))])
    last = [
        i
        for i, supervised in enumerate(labelled.supervised)
        if supervised and not any(labelled.supervised[i + 1 : i + 2])
    ]
    assert last
    assert {labelled.ids[index] for index in last} <= tokenizer.end_ids


@pytest.mark.parametrize(
    ("family", "end"),
    [
        ("chatml_marked", "<|im_end|>"),
        ("qwen25", "<|im_end|>"),
        ("llama3", "<|eot_id|>"),
        ("llama2", "</s>"),
        ("gemma", "<end_of_turn>"),
        ("phi3", "<|end|>"),
        ("harmony", "<|return|>"),
        ("deepseek_r1", "<｜end▁of▁sentence｜>"),  # noqa: RUF001
        ("command_r", "<|END_OF_TURN_TOKEN|>"),
    ],
)
def test_end_token_is_found_in_the_template(tokenizers: dict[str, Tokenizer], family: str, end: str) -> None:
    tokenizer = tokenizers[family]
    assert tokenizer.end_token == end
    assert tokenizer.backend.token_to_id(end) in tokenizer.end_ids


@pytest.mark.parametrize("family", ["llama3", "gemma", "command_r", "deepseek_r1"])
def test_bos_is_written_once(tokenizers: dict[str, Tokenizer], family: str) -> None:
    example = encode_row(tokenizers[family], row_of("single"), LONG)
    assert example.ids.count(tokenizers[family].backend.token_to_id(FAMILIES[family].named["bos_token"])) == 1


@pytest.mark.parametrize("family", list(FAMILIES))
def test_sample_view_has_the_whole_text_and_marks_supervised_pieces(
    tokenizers: dict[str, Tokenizer], family: str
) -> None:
    tokenizer, row = tokenizers[family], row_of("unicode")
    view = sample_view(tokenizer, row, seq_len=LONG)
    assert "".join(text for text, _ in view) == find_assistant_spans(tokenizer, row).text
    supervised = [
        text.rstrip() for text, is_supervised in view if is_supervised
    ]  # phi3's end token takes a newline with it
    assert supervised == runs(tokenizer, row)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_any_changed_byte_changes_the_digest(family: str) -> None:
    text, named = FAMILIES[family].template, FAMILIES[family].named
    digest = ChatTemplate(text, named).digest
    assert digest == ChatTemplate(text, {}).digest
    mutants = {text + " ", text.replace("message", "massage", 1), text.replace("'content", "'Content", 1), " " + text}
    mutants -= {text}
    assert len(mutants) >= 3
    assert digest not in {ChatTemplate(mutant, named).digest for mutant in mutants}


# -- marks


def spans(template: str, *contents: str) -> list[str] | None:
    rendered = ChatTemplate(template, {}).render([{"role": "assistant", "content": content} for content in contents])
    found = rendered.assistant_spans
    return None if found is None else [rendered.text[start:end] for start, end in found]


def test_marks_are_spans_of_characters() -> None:
    template = "é{% for m in messages %}[{% generation %}{{ m.content }}<end>{% endgeneration %}]{% endfor %}"
    assert spans(template, "🙂", "", "b") == ["🙂<end>", "<end>", "b<end>"]
    assert spans(template.replace("{% generation %}", "{%- generation -%}"), "a") == ["a<end>"]
    assert spans(template) == []


def test_template_without_marks_has_no_spans() -> None:
    assert spans("{% for m in messages %}{{ m.content }}{% endfor %}", "a") is None


def test_marks_at_an_unknown_position_are_ignored() -> None:
    """Inside a macro the text is written somewhere else, later."""
    macro = "{% macro say(m) %}[{% generation %}{{ m.content }}{% endgeneration %}]{% endmacro %}"
    assert spans(macro + "<{{ say(messages[0]) }}>", "abc") is None


# -- what templates may not do


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('no such chats') }}", "no such chats"),
        ("{{ nothing + 'a' }}", "'nothing' is undefined"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ 'a' * 1000000000 }}", "too large"),
        ("{{ 9 * [1] * 99999999 }}", "too large"),
        ("{{ 10 ** 1000000000 }}", "too large"),
        ("{{ 'a'.center(1000000000) }}", "too long"),
        ("{% for i in range(1000000000) %}{% endfor %}", "Range too big"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "recursion"),
    ],
)
def test_error_of_a_template_is_reported_in_its_words(template: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ChatTemplate(template, {}).render(QUESTION)
    assert refused.value.code == Code.TEMPLATE_UNSUPPORTED
    assert words in refused.value.message
    assert refused.value.param == "model.hf_repo"


def test_ordinary_arithmetic_is_allowed() -> None:
    text = ChatTemplate("{{ 24 * 3600 * 1000 }} {{ 2 ** 40 }} {{ '-' * 3 }} {{ 'a'.center(3) }} {{ 2.5 * 2 }}", {})
    assert text.render(QUESTION).text == "86400000 1099511627776 ---  a  5.0"


def test_invalid_template_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="endfor"):
        ChatTemplate("{% for message in messages %}", {})


def test_time_and_text_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with monkeypatch.context() as patch, pytest.raises(InvalidRequest, match="takes longer than"):
        patch.setattr("shared.tokenization.chat_template.MAX_SECONDS", 0.2)
        ChatTemplate(slow, {}).render(QUESTION)
    monkeypatch.setattr("shared.tokenization.chat_template.MAX_SECONDS", 60)
    with pytest.raises(InvalidRequest, match=f"over {MAX_TEXT} characters"):
        ChatTemplate("{% for i in range(99) %}{{ 'a' * 999999 }}{% endfor %}", {}).render(QUESTION)


# -- as transformers does it


@pytest.fixture(scope="session")
def hf_tokenizers(bases: dict[str, Path]) -> dict[str, Any]:
    from transformers import AutoTokenizer

    return {name: AutoTokenizer.from_pretrained(folder) for name, folder in bases.items()}


@pytest.mark.torch
@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize(("family", "case"), EVERY)
def test_text_and_ids_equal_those_of_transformers(
    tokenizers: dict[str, Tokenizer], hf_tokenizers: dict[str, Any], family: str, case: str, prompt: bool
) -> None:
    ours, theirs = tokenizers[family], hf_tokenizers[family]
    messages, tools = plain_messages(row_of(case).messages), CASES[case].get("tools")
    how = {"tools": tools, "add_generation_prompt": prompt}
    try:
        text = ours.render(messages, **how).text
    except InvalidRequest:
        with pytest.raises(Exception, match=r".+"):
            theirs.apply_chat_template(messages, tokenize=False, **how)
        return
    assert text == theirs.apply_chat_template(messages, tokenize=False, **how)
    assert ours.encode(text).ids == theirs.apply_chat_template(messages, return_dict=False, **how)


MARKED = [
    FAMILIES["chatml_marked"].template,
    (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}\n  {%- generation -%}\n{{ m.content }}"
        "{% endgeneration %}{% else %}{{ m | tojson }}{% endif %}{% break %}{% endfor %}"
    ),
    (
        "{% for m in messages %}<{% if m.role != 'user' %}{% generation %}{% if loop.first %}1{% endif %}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function | tojson(indent=2) }}{% endfor %}{% endgeneration %}{% endif %}>"
        "{% endfor %}"
    ),
]


@pytest.mark.torch
@pytest.mark.parametrize("template", MARKED)
@pytest.mark.parametrize("case", CASES)
def test_marks_equal_those_of_transformers(template: str, case: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = plain_messages(row_of(case).messages)
    given = {"bos_token": "<s>"}
    try:
        rendered = ChatTemplate(template, given).render(messages)
    except InvalidRequest:
        assert case in ("tools", "developer", "late_developer")
        return
    texts, marks = render_jinja_template([messages], chat_template=template, return_assistant_tokens_mask=True, **given)
    assert (rendered.text, rendered.assistant_spans) == (texts[0], marks[0])
