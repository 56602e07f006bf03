"""The card's section on the self-evaluation: its content, and that no answer becomes markup in it."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt

from shared.model_card.evaluation_section import evaluation_section
from shared.model_card.self_evaluation import (
    PairedMeasure,
    PreferredAnswers,
    RowSource,
    SampleAnswer,
    SelfEvaluation,
)

EVIL = "<script>alert(1)</script>\n# Heading\n[x](http://e)\n---\n```\n</code></pre> | a | `b`\n\n    **bold**"
SAMPLE = SampleAnswer(
    line=7,
    role="user",
    prompt="What is a bug?",
    turns=1,
    reference="A mistake.",
    base="",
    tuned="A mist",
    base_ended=True,
    tuned_ended=False,
)
EVALUATION = SelfEvaluation(
    source=RowSource.TRAINING,
    rows=9,
    rows_available=9,
    tokens=30,
    loss=PairedMeasure(base=2.5, tuned=1.25, row_difference=-1.2, interval=(-1.4, -1.0)),
    token_accuracy=PairedMeasure(base=0.4, tuned=0.6, row_difference=0.21, interval=None),
    sample_answers=(SAMPLE,),
)


def html(evaluation: SelfEvaluation) -> str:
    return MarkdownIt("commonmark").enable("table").render(evaluation_section(evaluation))


def test_base_and_tuned_stand_side_by_side():
    shown = html(EVALUATION)
    cells = re.findall(r"<td>(.*?)</td>", shown)
    assert cells[:5] == ["loss (nats per token)", "2.5000", "1.2500", "-1.2000", "-1.4000 to -1.0000"]
    assert cells[5:] == ["token accuracy (%)", "40.0", "60.0", "+21.0", "too few rows"]
    assert "<strong>rows that were trained on</strong>" in shown
    assert "Base and tuned are means over tokens." in shown
    assert "Sample 1 (line 7)" in shown
    assert "base:</p>\n<p>nothing</p>" in shown
    assert "tuned (cut at the limit of tokens):</p>\n<pre><code>A mist\n</code></pre>" in shown


def test_the_system_turn_is_shown_where_the_row_has_one():
    assert "system:" not in html(EVALUATION)
    shown = html(EVALUATION.model_copy(update={"sample_answers": (SAMPLE.model_copy(update={"system": "Be brief."}),)}))
    assert "system:</p>\n<pre><code>Be brief.\n</code></pre>" in shown


def test_no_answer_is_markup():
    texts = {"system": EVIL, "prompt": EVIL, "reference": EVIL, "base": EVIL, "tuned": EVIL, "role": EVIL}
    evil = SAMPLE.model_copy(update=texts)
    shown = html(EVALUATION.model_copy(update={"sample_answers": (evil, evil), "notes": (EVIL,)}))
    for markup in ("<script", "<a ", "<h1", "<hr", "<strong>bold"):
        assert markup not in shown
    assert shown.count("<pre><code>") == 10
    assert re.findall(r"<h2>(.*?)</h2>", shown) == ["Against its base"]


def test_of_pairs_it_says_which_answer_each_model_prefers():
    preferred = PreferredAnswers(reference="base", pairs=7, before=3, tuned=3, interval=None)
    shown = html(EVALUATION.model_copy(update={"preferred": preferred}))
    assert (
        "<p>The preferred answer is more likely per token in 3 of 7 pairs for the base and in 3 for the tuned model;"
        in shown
    )
    assert "more likely per token" not in html(EVALUATION)


def test_what_was_not_measured_is_said():
    empty = EVALUATION.model_copy(update={"loss": None, "token_accuracy": None, "notes": ("No memory.",)})
    assert "Nothing was measured." in evaluation_section(empty)
    assert "No memory." in evaluation_section(empty)
