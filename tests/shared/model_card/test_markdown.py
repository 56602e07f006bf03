"""Markdown in which no untrusted text becomes markup."""

from __future__ import annotations

import html as entities

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from shared.model_card.markdown import inline, license_fields, quotation, table

MARKDOWN = MarkdownIt("commonmark").enable("table")


@given(st.text())
def test_inline_text_stays_one_cell(text):
    shown = MARKDOWN.render(table([(text, "next")], ("a", "b")))
    assert shown.count("<td>") == 2
    assert "<td>next</td>" in shown
    assert "\n" not in inline(text)


@given(st.text(alphabet=st.sampled_from("a \t\n\r#`*<>|-_[](){}!&;=+1.\\\"'\u2028\x0b\x85"), min_size=1))
def test_a_quotation_is_one_block_of_code_and_nothing_else(text):
    shown = MARKDOWN.render(f"before:\n\n{quotation('x' + text)}\nafter\n")
    assert shown.startswith("<p>before:</p>\n<pre><code>x")
    assert shown.endswith("</code></pre>\n<p>after</p>\n")
    inside = shown.removeprefix("<p>before:</p>\n<pre><code>").removesuffix("</code></pre>\n<p>after</p>\n")
    assert "<" not in inside
    kept = "".join(entities.unescape(inside).split())
    assert kept == "".join("".join(one for one in "x" + text if one.isprintable()).split())


def test_licences_as_the_hub_knows_them():
    assert license_fields(None) == []
    assert license_fields(" Apache-2.0 ") == [("license", "apache-2.0")]
    assert license_fields("Our own\n---") == [("license", "other"), ("license_name", "Our own ---")]
