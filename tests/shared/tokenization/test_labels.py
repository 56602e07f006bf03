"""Labels: exactly the assistant's tokens and their end token are supervised, wherever the row is truncated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.datasets.reader import Message, TrainingRow
from shared.errors import Code, InvalidRequest
from shared.tokenization.assistant_spans import find_assistant_spans
from shared.tokenization.chat_template import ChatTemplate
from shared.tokenization.labels import BATCH_ROWS, IGNORED, format_line_numbers
from shared.tokenization.tokenizer import Tokenizer
from tests.support.encoding import encode_row, encode_rows
from tests.support.template_families import FAMILIES, make_base

LONG = 10_000

PLAIN_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}"
    "{{- '\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""The base's own template, without its marks."""

MARKS_WITHOUT_END_TOKEN = (
    "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['role'] == 'assistant' %}{% generation %}{{- message['content'] }}{% endgeneration %}"
    "{%- else %}{{- message['content'] }}{%- endif %}{{- '<|im_end|>\\n' }}{%- endfor %}"
)
"""Marks that leave the end token out, as many published templates do."""

MARKS_THEN_PROMPT = MARKS_WITHOUT_END_TOKEN + "{{- messages[0]['content'] }}"

# Like templates that drop the reasoning of every turn but the last: the prompt alone is not how the whole chat begins.
REWRITING_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if loop.last %}{{- message['content'] }}{%- else %}{{- message['content'] | upper }}{%- endif %}"
    "{{- '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

TWO_TURNS = [
    ("system", "Be brief."),
    ("user", "What is a bug?"),
    ("assistant", "A mistake in a program."),
    ("user", "And a fix?"),
    ("assistant", "A change that takes it away."),
]


def row(*turns: tuple[str, str], line: int = 1) -> TrainingRow:
    return TrainingRow(line, [Message(role, content) for role, content in turns])


def chat(prompt: str, answer: str, line: int = 1) -> TrainingRow:
    return row(("user", prompt), ("assistant", answer), line=line)


def supervised_text(tokenizer: Any, example: Any) -> str:
    return tokenizer.decode([label for label in example.labels if label != IGNORED])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_base(tmp_path_factory.mktemp("bases") / "marked", FAMILIES["chatml_marked"]))


@pytest.fixture(scope="module")
def with_template(tokenizer: Tokenizer) -> Callable[[str], Tokenizer]:
    """The same tokenizer with another template."""
    return lambda template: replace(tokenizer, template=ChatTemplate(template, {}))


def test_only_answer_and_end_token_are_supervised(tokenizer):
    example = encode_row(tokenizer, chat("What is a bug?", "A mistake."), LONG)
    assert supervised_text(tokenizer, example) == "A mistake.<|im_end|>"
    assert tokenizer.decode(example.ids) == (
        "<|im_start|>user\nWhat is a bug?<|im_end|>\n<|im_start|>assistant\nA mistake.<|im_end|>\n"
    )
    ignored = [id_ for id_, label in zip(example.ids, example.labels, strict=True) if label == IGNORED]
    assert tokenizer.decode(ignored) == "<|im_start|>user\nWhat is a bug?<|im_end|>\n<|im_start|>assistant\n\n"
    assert example.truncated == 0


def test_every_assistant_turn_is_supervised(tokenizer):
    example = encode_row(tokenizer, row(*TWO_TURNS), LONG)
    assert (
        supervised_text(tokenizer, example) == "A mistake in a program.<|im_end|>A change that takes it away.<|im_end|>"
    )


@pytest.mark.parametrize("answer", ["naïve café — 数据 🙂", "🙂", "数据", "e\u0301\u200d", "tab\tnew\nline", "  two  "])
def test_unicode_answers_are_supervised(tokenizer, answer):
    assert supervised_text(tokenizer, encode_row(tokenizer, chat("Say it.", answer), LONG)) == answer + "<|im_end|>"


def test_truncation_drops_the_beginning_and_keeps_labels_aligned(tokenizer):
    whole = encode_row(tokenizer, row(*TWO_TURNS), LONG)
    for seq_len in range(1, len(whole.ids) + 3):
        cut = encode_row(tokenizer, row(*TWO_TURNS), seq_len)
        assert cut.ids == whole.ids[-seq_len:]
        assert cut.labels == whole.labels[-seq_len:]
        assert cut.truncated == max(0, len(whole.ids) - seq_len)


def test_first_token_is_not_a_target(tokenizer):
    whole = encode_row(tokenizer, chat("Q", "A long answer."), LONG)
    supervised_count = sum(label != IGNORED for label in whole.labels)
    assert whole.targets == supervised_count
    first = whole.labels.index(next(label for label in whole.labels if label != IGNORED))
    cut = encode_row(tokenizer, chat("Q", "A long answer."), len(whole.ids) - first)
    assert cut.labels[0] != IGNORED
    assert cut.targets == supervised_count - 1


@pytest.mark.parametrize(("last_k", "expected"), [(1, 1), (3, 3), (LONG, None), (0, None)])
def test_last_k_keeps_the_last_supervised_tokens(tokenizer, last_k, expected):
    whole = encode_row(tokenizer, row(*TWO_TURNS), LONG)
    kept = encode_row(tokenizer, row(*TWO_TURNS), LONG, last_k)
    all_supervised = [index for index, label in enumerate(whole.labels) if label != IGNORED]
    kept_indices = [index for index, label in enumerate(kept.labels) if label != IGNORED]
    assert kept_indices == (all_supervised if expected is None else all_supervised[-expected:])
    assert kept.ids == whole.ids


def test_last_1_keeps_the_end_token(tokenizer):
    assert supervised_text(tokenizer, encode_row(tokenizer, chat("Q", "A"), LONG, 1)) == "<|im_end|>"


def test_row_without_supervised_tokens_is_skipped_by_line_number(with_template):
    """Cut to its last tokens, a row can lose its whole answer to what the template appends."""
    appending = with_template(MARKS_THEN_PROMPT)
    rows = [chat("a b c d e f g h", "A", line=3), chat("Q", "A", line=4), chat("i j k l m n o p", "B", line=9)]
    examples, skipped = encode_rows(appending, rows, 6, 0)
    assert ([example.line for example in examples], skipped) == ([4], [3, 9])


def test_many_line_numbers_are_capped():
    assert format_line_numbers([1, 5]) == "1, 5"
    assert format_line_numbers(list(range(1, 14))) == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 3 more"


@pytest.mark.parametrize("answer", ["A change.", "数据 🙂", "ends with a smile 🙂", "line\nline"])
def test_template_without_marks_gives_the_same_labels(tokenizer, with_template, answer):
    turns = [*TWO_TURNS[:-1], ("assistant", answer)]
    assert encode_row(with_template(PLAIN_TEMPLATE), row(*turns), LONG) == encode_row(tokenizer, row(*turns), LONG)


def test_single_turn_is_the_same_with_and_without_marks(tokenizer, with_template):
    plain = with_template(PLAIN_TEMPLATE)
    assert encode_row(plain, chat("Q", "A b c."), 12) == encode_row(tokenizer, chat("Q", "A b c."), 12)


@pytest.mark.parametrize("answer", ["A change.", "bytes of 数", "a smile 🙂"])
def test_end_token_outside_the_marks_is_supervised(with_template, answer):
    marked = with_template(MARKS_WITHOUT_END_TOKEN)
    assert supervised_text(marked, encode_row(marked, chat("Q", answer), LONG)) == answer + "<|im_end|>"


def test_end_tokens_of_other_turns_are_not_supervised(tokenizer):
    example = encode_row(tokenizer, row(*TWO_TURNS), LONG)
    assert sum(label in tokenizer.end_ids for label in example.labels) == 2
    assert sum(id_ in tokenizer.end_ids for id_ in example.ids) == 5


def test_template_that_does_not_show_the_answer_is_refused(with_template):
    with pytest.raises(InvalidRequest) as refused:
        encode_row(with_template(REWRITING_TEMPLATE), row(*TWO_TURNS, line=12), LONG)
    assert refused.value.code == Code.TEMPLATE_UNSUPPORTED
    assert refused.value.remedy
    assert "line 12" in refused.value.message


def weighted(*weights: int | None) -> TrainingRow:
    turns = [turn for number in range(len(weights)) for turn in (("user", f"Q{number}"), ("assistant", f"A{number}"))]
    answers = iter(weights)
    messages = [Message(role, text, weight=next(answers) if role == "assistant" else None) for role, text in turns]
    return TrainingRow(1, messages)


@pytest.mark.parametrize("kind", ["marks", "offsets"])
@pytest.mark.parametrize(
    ("weights", "expected"),
    [((None, None), "A0 A1"), ((0, 1), "A1"), ((1, 0), "A0"), ((0, None, 0, 1), "A1 A3"), ((0, 0), "")],
)
def test_turns_of_weight_0_are_not_supervised(tokenizer, with_template, kind, weights, expected):
    chosen = tokenizer if kind == "marks" else with_template(PLAIN_TEMPLATE)
    example = encode_row(chosen, weighted(*weights), LONG)
    assert supervised_text(chosen, example).replace("<|im_end|>", " ").strip() == expected
    assert find_assistant_spans(chosen, weighted(*weights)).method == kind


# Marks show which characters are supervised, not whose: with several per turn, the chat is written turn by turn.
SEVERAL_MARKS = (
    "{%- for message in messages %}{%- if message['role'] == 'assistant' %}{% generation %}{{- message['content'][0] }}"
    "{% endgeneration %}{% generation %}{{- message['content'][1:] }}{% endgeneration %}{%- else %}"
    "{{- message['content'] }}{%- endif %}{%- endfor %}"
)


def test_weights_with_several_marks_per_turn(with_template):
    chat = find_assistant_spans(with_template(SEVERAL_MARKS), weighted(1, 0, 1))
    assert [chat.text[start:end] for start, end in chat.spans] == ["A", "0", "A", "2"]
    unclear = with_template("{% if messages | length > 4 %}" + SEVERAL_MARKS + "{% endif %}")
    with pytest.raises(InvalidRequest, match="which of them are that turn's"):
        find_assistant_spans(unclear, weighted(1, 0, 1))


def test_offsets_are_used_when_marks_mark_nothing(with_template):
    """A template may mark only what it was written for; then answers are found by offsets."""
    template = PLAIN_TEMPLATE + "{% if messages | length > 9 %}{% generation %}{% endgeneration %}{% endif %}"
    chosen = with_template(template)
    assert find_assistant_spans(chosen, chat("Q", "A")).method == "offsets"
    assert supervised_text(chosen, encode_row(chosen, chat("Q", "A"), LONG)) == "A<|im_end|>"


def test_token_across_a_border_is_not_supervised(with_template):
    """The template's last letters and the answer's first are one token here: it would train the model on the prompt."""
    chosen = with_template(
        PLAIN_TEMPLATE.replace("assistant\\n' }}{%- endif", "assistant\\nWh' }}{%- endif").replace(
            "message['content']", "('Wh' if message['role'] == 'assistant' else '') + message['content']"
        )
    )
    example = encode_row(chosen, chat("Q", "at is it"), LONG)
    assert "What" in [chosen.decode([id_]) for id_ in example.ids]
    assert supervised_text(chosen, example) == " is it<|im_end|>"


def test_of_two_end_tokens_the_first_is_supervised(with_template, tokenizer):
    twice = with_template(MARKS_WITHOUT_END_TOKEN.replace("<|im_end|>", "<|im_end|><|im_end|>"))
    assert supervised_text(twice, encode_row(twice, chat("Q", "A"), LONG)) == "A<|im_end|>"


def test_rows_are_encoded_in_batches_and_keep_their_order(tokenizer):
    rows = [chat(f"Q{n}", f"A{n}", line=n) for n in range(1, 2 * BATCH_ROWS + 2)]
    examples, skipped = encode_rows(tokenizer, iter(rows), LONG, 0)
    assert not skipped
    assert examples == [encode_row(tokenizer, one, LONG) for one in rows]


# The template's own text may merge with white space at the answer's ends; special tokens in a text are special.
TEXT = st.text(min_size=1, max_size=40).filter(lambda text: text == text.strip() and "<|" not in text)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompt=TEXT, answer=TEXT, seq_len=st.integers(1, 120), last_k=st.integers(0, 5), marks=st.booleans())
def test_labels_are_ids_of_the_answer(tokenizer, with_template, prompt, answer, seq_len, last_k, marks):
    chosen = tokenizer if marks else with_template(PLAIN_TEMPLATE)
    whole = encode_row(chosen, chat(prompt, answer), LONG)
    assert supervised_text(chosen, whole) == answer + "<|im_end|>"
    cut = encode_row(chosen, chat(prompt, answer), seq_len, last_k)
    assert len(cut.ids) == len(cut.labels) <= seq_len
    assert all(label in (IGNORED, id_) for id_, label in zip(cut.ids, cut.labels, strict=True))
    supervised_count = sum(label != IGNORED for label in cut.labels)
    assert supervised_count <= (last_k or LONG)


@pytest.mark.torch
def test_labels_equal_the_mask_of_transformers(tmp_path: Path) -> None:
    """The template of `worker/pretrain.py` over the whole example data: ids and marks equal transformers' own."""
    from transformers import AutoTokenizer

    from shared.datasets.reader import read_rows
    from worker.pretrain import CHAT_TEMPLATE

    assert FAMILIES["chatml_marked"].template.rstrip() == CHAT_TEMPLATE.rstrip()
    folder = make_base(tmp_path / "tiny", FAMILIES["chatml_marked"], CHAT_TEMPLATE)
    ours, theirs = Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    with (Path(__file__).parents[3] / "examples" / "support.jsonl").open("rb") as lines:
        for one in read_rows(lines):
            messages = [{"role": message.role, "content": message.content} for message in one.messages]
            encoded = theirs.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
            example = encode_row(ours, one, LONG)
            assert example.ids == encoded["input_ids"]
            assert [int(label != IGNORED) for label in example.labels] == encoded["assistant_masks"]


def test_prompt_comparison_can_be_left_out(tokenizer, with_template):
    """Where marks show the answers it changes nothing but `prompt_differs`; without marks it is compared anyhow."""
    thinking = with_template(
        tokenizer.template.text.replace("<|im_start|>assistant\\n", "<|im_start|>assistant\\n<think>")
    )
    whole = find_assistant_spans(thinking, row(*TWO_TURNS))
    assert whole.method == "marks"
    assert whole.prompt_differs
    assert find_assistant_spans(thinking, row(*TWO_TURNS), compare_prompt=False) == replace(whole, prompt_differs=False)
    plain = with_template(PLAIN_TEMPLATE)
    assert find_assistant_spans(plain, row(*TWO_TURNS), compare_prompt=False) == find_assistant_spans(
        plain, row(*TWO_TURNS)
    )
