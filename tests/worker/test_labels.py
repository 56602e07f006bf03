"""Which tokens are learnt: the assistant's and its end token, wherever the row is cut; nothing else, ever."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.dataset import Message, TrainingRow
from shared.errors import Code, InvalidRequest
from worker.labels import IGNORED, count_lines, encode_row, encode_rows

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


def learnt(tokenizer: Any, example: Any) -> str:
    return tokenizer.decode([label for label in example.labels if label != IGNORED])


@pytest.fixture(scope="module")
def with_template(tokenizer):
    """The same tokenizer with another template."""

    def build(template: Any):
        other = copy.deepcopy(tokenizer)
        other.chat_template = template
        return other

    return build


def test_answer_and_end_token_are_learnt_and_nothing_else(tokenizer):
    example = encode_row(tokenizer, chat("What is a bug?", "A mistake."), LONG)
    assert learnt(tokenizer, example) == "A mistake.<|im_end|>"
    assert tokenizer.decode(example.ids) == (
        "<|im_start|>user\nWhat is a bug?<|im_end|>\n<|im_start|>assistant\nA mistake.<|im_end|>\n"
    )
    ignored = [id_ for id_, label in zip(example.ids, example.labels, strict=True) if label == IGNORED]
    assert tokenizer.decode(ignored) == "<|im_start|>user\nWhat is a bug?<|im_end|>\n<|im_start|>assistant\n\n"
    assert example.truncated == 0


def test_every_assistant_turn_is_learnt(tokenizer):
    example = encode_row(tokenizer, row(*TWO_TURNS), LONG)
    assert learnt(tokenizer, example) == "A mistake in a program.<|im_end|>A change that takes it away.<|im_end|>"


@pytest.mark.parametrize("answer", ["naïve café — 数据 🙂", "🙂", "数据", "e\u0301\u200d", "tab\tnew\nline", "  two  "])
def test_unicode_answers(tokenizer, answer):
    assert learnt(tokenizer, encode_row(tokenizer, chat("Say it.", answer), LONG)) == answer + "<|im_end|>"


def test_truncation_drops_the_beginning_and_labels_move_along(tokenizer):
    whole = encode_row(tokenizer, row(*TWO_TURNS), LONG)
    for seq_len in range(1, len(whole.ids) + 3):
        cut = encode_row(tokenizer, row(*TWO_TURNS), seq_len)
        assert cut.ids == whole.ids[-seq_len:]
        assert cut.labels == whole.labels[-seq_len:]
        assert cut.truncated == max(0, len(whole.ids) - seq_len)


def test_targets_leave_out_the_first_token_which_nothing_predicts(tokenizer):
    whole = encode_row(tokenizer, chat("Q", "A long answer."), LONG)
    learnt_count = sum(label != IGNORED for label in whole.labels)
    assert whole.targets == learnt_count
    first = whole.labels.index(next(label for label in whole.labels if label != IGNORED))
    cut = encode_row(tokenizer, chat("Q", "A long answer."), len(whole.ids) - first)
    assert cut.labels[0] != IGNORED
    assert cut.targets == learnt_count - 1


@pytest.mark.parametrize(("last_k", "expected"), [(1, 1), (3, 3), (LONG, None), (0, None)])
def test_last_k_keeps_the_last_learnt_tokens(tokenizer, last_k, expected):
    whole = encode_row(tokenizer, row(*TWO_TURNS), LONG)
    kept = encode_row(tokenizer, row(*TWO_TURNS), LONG, last_k)
    all_learnt = [index for index, label in enumerate(whole.labels) if label != IGNORED]
    kept_indices = [index for index, label in enumerate(kept.labels) if label != IGNORED]
    assert kept_indices == (all_learnt if expected is None else all_learnt[-expected:])
    assert kept.ids == whole.ids


def test_last_one_is_the_end_token(tokenizer):
    assert learnt(tokenizer, encode_row(tokenizer, chat("Q", "A"), LONG, 1)) == "<|im_end|>"


def test_row_with_nothing_learnt_is_skipped_by_its_line_number(with_template):
    """Cut to its last tokens, a row can lose its whole answer to what the template appends."""
    appending = with_template(MARKS_THEN_PROMPT)
    rows = [chat("a b c d e f g h", "A", line=3), chat("Q", "A", line=4), chat("i j k l m n o p", "B", line=9)]
    examples, skipped = encode_rows(appending, rows, 6, 0)
    assert ([example.line for example in examples], skipped) == ([4], [3, 9])


def test_many_line_numbers_are_capped():
    assert count_lines([1, 5]) == "1, 5"
    assert count_lines(list(range(1, 14))) == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 3 more"


@pytest.mark.parametrize("answer", ["A change.", "数据 🙂", "ends with a smile 🙂", "line\nline"])
def test_template_without_marks_gives_the_same_labels_for_the_last_turn(tokenizer, with_template, answer):
    plain = with_template(PLAIN_TEMPLATE)
    turns = [*TWO_TURNS[:-1], ("assistant", answer)]
    by_offsets = encode_row(plain, row(*turns), LONG)
    by_marks = encode_row(tokenizer, row(*turns), LONG)
    assert by_offsets.ids == by_marks.ids
    assert learnt(plain, by_offsets) == answer + "<|im_end|>"
    first = by_offsets.labels.index(next(label for label in by_offsets.labels if label != IGNORED))
    assert by_offsets.labels[first:] == by_marks.labels[first:]


def test_single_turn_is_the_same_with_and_without_marks(tokenizer, with_template):
    plain = with_template(PLAIN_TEMPLATE)
    assert encode_row(plain, chat("Q", "A b c."), 12) == encode_row(tokenizer, chat("Q", "A b c."), 12)


@pytest.mark.parametrize("answer", ["A change.", "bytes of 数", "a smile 🙂"])
def test_end_token_is_learnt_when_the_marks_leave_it_out(with_template, answer):
    marked = with_template(MARKS_WITHOUT_END_TOKEN)
    assert learnt(marked, encode_row(marked, chat("Q", answer), LONG)) == answer + "<|im_end|>"


def test_end_tokens_of_other_turns_are_not_learnt(tokenizer):
    example = encode_row(tokenizer, row(*TWO_TURNS), LONG)
    assert sum(label == tokenizer.eos_token_id for label in example.labels) == 2
    assert sum(id_ == tokenizer.eos_token_id for id_ in example.ids) == 5


@pytest.mark.parametrize("template", [REWRITING_TEMPLATE, None])
def test_template_that_does_not_show_the_answer_is_refused(with_template, template):
    with pytest.raises(InvalidRequest) as refused:
        encode_row(with_template(template), row(*TWO_TURNS, line=12), LONG)
    assert refused.value.code == Code.TEMPLATE_UNSUPPORTED
    assert refused.value.remedy
    if template:
        assert "line 12" in refused.value.message


# The template's own text may merge with white space at the answer's ends; special tokens in a text are special.
TEXT = st.text(min_size=1, max_size=40).filter(lambda text: text == text.strip() and "<|" not in text)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompt=TEXT, answer=TEXT, seq_len=st.integers(1, 120), last_k=st.integers(0, 5), marks=st.booleans())
def test_labels_are_ids_of_the_answer(tokenizer, with_template, prompt, answer, seq_len, last_k, marks):
    chosen = tokenizer if marks else with_template(PLAIN_TEMPLATE)
    whole = encode_row(chosen, chat(prompt, answer), LONG)
    assert learnt(chosen, whole) == answer + "<|im_end|>"
    cut = encode_row(chosen, chat(prompt, answer), seq_len, last_k)
    assert len(cut.ids) == len(cut.labels) <= seq_len
    assert all(label in (IGNORED, id_) for id_, label in zip(cut.ids, cut.labels, strict=True))
    learnt_count = sum(label != IGNORED for label in cut.labels)
    assert learnt_count <= (last_k or LONG)
