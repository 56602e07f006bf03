"""Templates of graders: paths into item and answer, and an error for every path that does not exist."""

from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import Code, InvalidRequest
from shared.graders.grading import make_sample
from shared.graders.templates import Template, check_template, render

ITEM = {
    "q": "Where?",
    "n": 3,
    "list": [{"x": "first"}, [1, None]],
    "a b": "spaced",
    "no": None,
    "yes": True,
    "half": 0.5,
    "": "empty",
    "ä-ö": "uml",
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("plain", "plain"),
        ("", ""),
        ("{{item.q}}", "Where?"),
        ("<{{  item.q  }}> {{ sample.output_text }}", "<Where?> yes"),
        ("{{ item.n }}", "3"),
        ("{{ item.list[0].x }}", "first"),
        ("{{ item.list[1] }}", "[1, null]"),
        ("{{ item.no }}", "null"),
        ("{{ item.yes }} {{ item.half }}", "true 0.5"),
        ("100 % %s %% {{ item.q }} %(n)s", "100 % %s %% Where? %(n)s"),
        ("{{ item.a b }}", "spaced"),
        ("{{ item.ä-ö }}", "uml"),
        ("{{ sample.choices[0].message.content }}", "yes"),
        ("{{ sample.output_tools }}", "[]"),
        ("one } and { two", "one } and { two"),
    ],
)
def test_a_path_is_filled_in(template: str, text: str) -> None:
    assert render(template, ITEM, make_sample("yes")) == text


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("item.missing", "item.missing"),
        ("item.q.deeper", "item.q.deeper"),
        ("item.list[2]", "item.list[2]"),
        ("item.q[0]", "item.q[0]"),
        ("item.list.x", "item.list.x"),
        ("item[0]", "item[0]"),
        ("sample.nothing", "sample.nothing"),
    ],
)
def test_a_path_to_nothing_is_an_error_that_names_it(path: str, named: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(f"The field {named} does not exist.")) as caught:
        render(f"{{{{ {path} }}}}", ITEM, make_sample("yes"))
    assert (caught.value.code, caught.value.param) == (Code.GRADER_VARIABLE_INVALID, named)


@pytest.mark.parametrize(
    "template",
    [
        "{{ item.q",
        "{{ other.q }}",
        "{{ }}",
        "{{ item. }}",
        "{{ item.q | upper }} {{",
        "{{ item.q[-1] }}",
        "{{ items.q }}",
        "{{ 1 + 1 }}",
    ],
)
def test_what_is_not_a_path_is_refused_before_any_answer(template: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_template(template)
    assert caught.value.code == Code.GRADER_INVALID


def test_an_answer_that_is_not_json_is_distinguished_from_a_path_to_nothing() -> None:
    assert render("{{ sample.output_json.a }}", {}, make_sample('{"a": [1]}')) == "[1]"
    with pytest.raises(InvalidRequest) as caught:
        render("{{ sample.output_json.a }}", {}, make_sample("no json"))
    assert caught.value.code == Code.GRADER_SAMPLE_INVALID
    with pytest.raises(InvalidRequest) as caught:
        render("{{ sample.output_json.b }}", {}, make_sample('{"a": 1}'))
    assert caught.value.code == Code.GRADER_VARIABLE_INVALID


JSON = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text() | st.integers(), max_size=3)


@given(JSON)
def test_every_value_comes_back(value: object) -> None:
    text = render("{{ item.v }}", {"v": value}, {})
    assert text == value if isinstance(value, str) else json.loads(text) == value


@given(st.text(alphabet="{} item.sample[0]ab"))
def test_a_template_is_rendered_or_refused_with_a_code(template: str) -> None:
    try:
        render(template, {"a": {"b": [1]}}, {"a": "b"})
    except InvalidRequest as error:
        assert error.code in {Code.GRADER_INVALID, Code.GRADER_VARIABLE_INVALID, Code.GRADER_SAMPLE_INVALID}


def test_placeholders_that_are_not_closed_are_refused_at_once() -> None:
    """If each of them searched again for a missing end, the API's process would block for minutes."""
    began = time.process_time()
    with pytest.raises(InvalidRequest, match="not closed"):
        check_template("{{" * 100_000)
    assert time.process_time() - began < 5


@given(st.lists(st.sampled_from(["{{ item.a.b[0] }}", "{{item.c}}", "{{ sample.d }}", "text", "}", "{ "])), JSON)
def test_a_parsed_template_is_filled_in_again_and_again(parts: list[str], value: object) -> None:
    template = Template("".join(parts))
    for item in ({"a": {"b": [value]}, "c": value}, {"a": {"b": ["other"]}, "c": 0.5}):
        sample = {"d": item["c"]}
        wanted = "".join(
            as_text(item["a"]["b"][0]) if "b[0]" in part  # type: ignore[index]
            else as_text(item["c"]) if "{{" in part
            else part
            for part in parts
        )  # fmt: skip
        assert template.render(item, sample) == wanted


def as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
