"""The form of a chat template is found if it has one, reproduces the template, and is refused otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.export.ollama.chat_form import ChatForm, TurnForm, differences, find_form, takes_late_system
from shared.errors import Code, InvalidRequest
from shared.tokenization.chat_template import ChatTemplate
from tests.support.template_families import FAMILIES

FORMED = sorted(FAMILIES.keys() - {"mistral_nemo"})
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def template_of(name: str) -> ChatTemplate:
    return ChatTemplate(FAMILIES[name].template, FAMILIES[name].named)


@pytest.fixture(scope="module")
def forms() -> dict[str, ChatForm]:
    return {name: find_form(template_of(name), FAMILIES[name].tokens) for name in FORMED}


def test_chatml_has_the_form_that_everybody_writes(forms: dict[str, ChatForm]) -> None:
    def turn(role: str) -> TurnForm:
        return TurnForm(f"<|im_start|>{role}\n", "<|im_end|>\n")

    expected = ChatForm("", "", turn("system"), turn("user"), None, turn("assistant"), prompt="<|im_start|>assistant\n")
    assert forms["chatml_marked"] == expected


@pytest.mark.parametrize("name", FORMED)
def test_any_alternating_chat_is_written_as_the_template_writes_it(name: str, forms: dict[str, ChatForm]) -> None:
    template, form = template_of(name), forms[name]
    # No white space outside and no thoughts, which some templates take away: that is said in `differences`.
    inner = st.lists(st.text("aé数🙂<>{}%|\"'&", min_size=1, max_size=6), min_size=1, max_size=3).map(" \n".join)

    @settings(max_examples=20, deadline=None)
    @given(st.booleans(), st.lists(inner, min_size=2, max_size=6))
    def check(system: bool, texts: list[str]) -> None:
        roles = ["system", "user", "assistant", "user", "assistant", "user"][0 if system else 1 :]
        chat = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
        chat = chat if chat[-1]["role"] == "user" else chat[:-1]
        assert form.render(chat) == template.render(chat, add_generation_prompt=True).text

    check()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (FAMILIES["mistral_nemo"].template, "depends on more than the roles"),
        ("{{ strftime_now('%d %b %Y') }}" + CHATML, "the current date"),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "changes their text"),
        ("{{ raise_exception('no') }}", "rejects a chat"),
        ("{% for m in messages %}[{{ loop.index }}]{{ m.content }}{% endfor %}", "depends on more"),
        (
            "{% for m in messages %}{{ m.role }}:{{ m.content | length }}:{{ m.content }};{% endfor %}",
            "depends on more",
        ),
    ],
)
def test_what_has_no_form_is_refused(source: str, reason: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        find_form(ChatTemplate(source, FAMILIES["mistral_nemo"].named))
    assert refused.value.code == Code.OLLAMA_TEMPLATE_UNSUPPORTED
    assert reason in refused.value.message
    assert "vLLM" in refused.value.remedy


def test_a_template_without_system_turns_has_a_form_without(forms: dict[str, ChatForm]) -> None:
    template = ChatTemplate(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML, {}
    )
    form = find_form(template, ("<|im_start|>", "<|im_end|>"))
    assert form.system is None
    assert form.user == forms["chatml_marked"].user
    assert any("no system turn" in one for one in differences(form, template))


@pytest.mark.parametrize(
    ("name", "late", "said"),
    [
        ("qwen25", True, []),
        ("qwen3", True, ["Thoughts"]),
        ("llama3", False, ["White space"]),
        ("gemma", True, ["White space"]),
    ],
)
def test_what_a_template_does_beyond_its_form_is_said(
    name: str, late: bool, said: list[str], forms: dict[str, ChatForm]
) -> None:
    template = template_of(name)
    assert takes_late_system(forms[name], template) is late
    found = differences(forms[name], template)
    assert [sentence.split()[0] for sentence in found[:-1]] == [one.split()[0] for one in said]
    assert "no tools" in found[-1]
