"""Templates as Ollama runs them: Go's own text/template renders the same text as the base's chat template."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.export.ollama.chat_form import PROBE_CHATS, ChatForm, TurnForm, find_form, takes_late_system
from cli.export.ollama.go_template import go_template, literal
from shared.tokenization.chat_template import ChatTemplate
from tests.support.go_templates import render_go
from tests.support.modelfile_grammar import read_modelfile
from tests.support.template_families import FAMILIES

TEXTS = (
    "What is {{ .Content }}?",
    "{%- raw -%} <b>&amp;</b>",
    'She said: """no"""',
    "数据\n\nżółć 🙂\tand tabs",
    "{",
    "\\n $x `y`",
)
AWKWARD = (
    "{{ end }}", "{", "a{", "{}", "-}}", '"""', '""""""" x', '"', "\u200b\ufeff", "\U000e0001", "a\u00a0b", "数据 ▁", "\r\n", "\\", "`",
)  # fmt: skip


def form_of(text: str) -> ChatForm:
    return ChatForm(text, text, None, TurnForm(text, text), None, TurnForm(text, text), text)


@pytest.mark.deploy
@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - {"mistral_nemo"}))
def test_go_writes_what_the_chat_template_writes(name: str, tmp_path: Path) -> None:
    template = ChatTemplate(FAMILIES[name].template, FAMILIES[name].named)
    form = find_form(template, FAMILIES[name].tokens)
    late = takes_late_system(form, template)
    roles = [*PROBE_CHATS, *([("user", "assistant", "system", "user")] if late else [])]
    chats = [
        [{"role": role, "content": TEXTS[(number + turn) % len(TEXTS)]} for turn, role in enumerate(each)]
        for number in range(len(TEXTS))
        for each in roles
    ]
    written = render_go(tmp_path / "chart", go_template(form, late_system=late), chats)
    assert written == [template.render(chat, add_generation_prompt=True).text for chat in chats]


@pytest.mark.deploy
def test_texts_of_any_kind_stay_texts(tmp_path: Path) -> None:
    """Around the turns stands whatever a template has there; Go and the Modelfile leave it as it is."""
    chat = [{"role": "user", "content": "hi"}]
    # One behind the other, because helm takes a quarter of a second to start; each begins and ends with its own text.
    template = "".join(go_template(form_of(text), late_system=False) for text in AWKWARD)
    (_, kept) = (str(argument) for _, _, argument in read_modelfile(f'FROM x\nTEMPLATE """{template}"""\n'))
    assert render_go(tmp_path / "chart", kept, [chat]) == ["".join(form_of(text).render(chat) for text in AWKWARD)]


def test_a_plain_text_is_written_plainly() -> None:
    assert literal("<|im_start|>system\nYou are „kind“.数据") == "<|im_start|>system\nYou are „kind“.数据"


@pytest.mark.deploy
@pytest.mark.parametrize("roles", [("user", "tool"), ("system", "user"), ("developer",)])
def test_a_turn_without_a_form_is_an_error(roles: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no turn of this role"):
        render_go(
            tmp_path / "chart",
            go_template(form_of("x"), late_system=False),
            [[{"role": role, "content": "hi"} for role in roles]],
        )


@pytest.mark.deploy
def test_a_late_system_turn_is_an_error_where_the_template_takes_none(tmp_path: Path) -> None:
    family = FAMILIES["llama3"]
    template = go_template(find_form(ChatTemplate(family.template, family.named), family.tokens), late_system=False)
    chat = [{"role": role, "content": "hi"} for role in ("user", "assistant", "system", "user")]
    assert render_go(tmp_path / "first", template, [chat[2:]])
    with pytest.raises(ValueError, match="no turn of this role"):
        render_go(tmp_path / "late", template, [chat])
