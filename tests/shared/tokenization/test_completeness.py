"""Every part of a row is in its rendered text, or the row is refused; with templates of thirteen families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.datasets.rows import Message, TrainingRow
from shared.errors import Code, InvalidRequest
from shared.tokenization import completeness
from shared.tokenization.assistant_spans import Chat, find_assistant_spans
from shared.tokenization.tokenizer import Tokenizer
from tests.support.template_families import CALL, CASES, FAMILIES, TOOLS, make_base, turn

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("families")
    return {name: Tokenizer.load(make_base(folder / name, family)) for name, family in FAMILIES.items()}


def base(folder: Path, template: str) -> Tokenizer:
    return Tokenizer.load(make_base(folder, FAMILIES["no_prompt"], template))


def write(tokenizer: Tokenizer, *turns: dict[str, Any], tools: list[dict[str, Any]] | None = None) -> Chat:
    return find_assistant_spans(tokenizer, TrainingRow(3, [Message(**one) for one in turns], tools=tools))


def refusal(tokenizer: Tokenizer, *turns: dict[str, Any], tools: list[dict[str, Any]] | None = None) -> str:
    with pytest.raises(InvalidRequest) as refused:
        write(tokenizer, *turns, tools=tools)
    assert (refused.value.code, refused.value.details) == (Code.TEMPLATE_UNSUPPORTED, {"line": 3})
    return refused.value.message


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("case", list(CASES))
def test_every_word_is_written_or_the_row_is_refused(tokenizers: dict[str, Tokenizer], family: str, case: str) -> None:
    turns = CASES[case]["messages"]
    try:
        chat = write(tokenizers[family], *turns, tools=CASES[case].get("tools"))
    except InvalidRequest:
        return
    for one in turns:
        text = (one["content"] or "").strip()
        if "</think>" in text and "thoughts" in chat.left_out:
            text = text.rpartition("</think>")[2].strip()
        assert text in chat.text
        written = '"unit": "<€>"' in chat.text or "<parameter=unit>\n<€>\n" in chat.text
        assert not one.get("tool_calls") or written


@pytest.mark.parametrize("family", ["qwen25", "qwen3", "deepseek_r1", "zephyr", "llama3", "gemma"])
def test_developer_is_written_as_the_system(tokenizers: dict[str, Tokenizer], family: str) -> None:
    developer, system = ([turn(role, "Be brief."), *CASES["single"]["messages"]] for role in ("developer", "system"))
    found, expected = (write(tokenizers[family], *turns) for turns in (developer, system))
    assert found.text == expected.text
    assert (found.developer_as_system, expected.developer_as_system) == (True, False)


@pytest.mark.parametrize("role", ["developer", "system"])
def test_developer_is_refused_where_the_system_is(tokenizers: dict[str, Tokenizer], role: str) -> None:
    """Mistral Nemo's template writes a system text into a question that is the last turn, which no row ends with."""
    said = refusal(tokenizers["mistral_nemo"], turn(role, "Be brief."), *CASES["single"]["messages"])
    assert "leaves out the system turn 'Be brief.'" in said


def test_developer_that_the_template_knows_stays_one(tokenizers: dict[str, Tokenizer]) -> None:
    chat = write(tokenizers["harmony"], turn("developer", "Be brief."), *CASES["single"]["messages"])
    assert "<|start|>developer<|message|># Instructions\nBe brief." in chat.text
    assert not chat.developer_as_system


def test_turn_is_missed_although_its_text_is_a_part_of_another(tmp_path: Path) -> None:
    tokenizer = base(tmp_path, "{% for m in messages if m.role != 'system' %}" + CHATML.partition("%}")[2])
    said = refusal(tokenizer, turn("system", "hi"), turn("user", "this"), turn("assistant", "Yes."))
    assert "leaves out the content of a turn (system)" in said


def test_arguments_are_missed(tmp_path: Path) -> None:
    calls = "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}<|im_end|>"
    tokenizer = base(tmp_path, CHATML.replace("<|im_end|>", calls))
    said = refusal(tokenizer, turn("user", "1 + 1?"), turn("assistant", None, tool_calls=[CALL]))
    assert "leaves out a call's arguments" in said


@pytest.mark.parametrize("family", ["zephyr", "deepseek_r1", "gemma", "phi3"])
def test_tools_are_missed(tokenizers: dict[str, Tokenizer], family: str) -> None:
    said = refusal(tokenizers[family], turn("user", "Hi"), turn("assistant", "Hello."), tools=TOOLS)
    assert "leaves out the tool" in said


def test_description_of_a_tool_is_missed(tokenizers: dict[str, Tokenizer]) -> None:
    tool = {"type": "function", "function": TOOLS[0]["function"] | {"description": "Adds \"a\" and 'b'."}}
    turns = turn("user", "Hi"), turn("assistant", "Hello.")
    assert "description of a tool" in refusal(tokenizers["harmony"], *turns, tools=[tool])
    assert write(tokenizers["qwen25"], *turns, tools=[tool])


def test_parameters_of_a_tool_are_missed(tmp_path: Path) -> None:
    about = {"type": "object", "properties": {"secret": {"type": "string", "description": "Hidden."}}}
    tool = {"type": "function", "function": {"name": "find", "description": "Finds.", "parameters": about}}
    turns = turn("user", "Hi"), turn("assistant", "Hello.")
    named = "{% for t in tools or [] %}{{ t.function.name }}: {{ t.function.description }}\n{% endfor %}"
    said = refusal(base(tmp_path / "named", named + CHATML), *turns, tools=[tool])
    assert "leaves out the parameter of a tool 'secret'" in said
    # Its name is a part of another text.
    said = refusal(base(tmp_path / "part", named + CHATML), turn("user", "secret Hidden."), turns[1], tools=[tool])
    assert "leaves out a tool's parameters" in said
    listed = named.replace("\n{%", "{% for name in t.function.parameters.properties %}{{ name }}{% endfor %}\n{%")
    said = refusal(base(tmp_path / "listed", listed + CHATML), *turns, tools=[tool])
    assert "leaves out the description of a parameter 'Hidden.'" in said
    said = refusal(base(tmp_path / "both", listed + CHATML), turn("user", "Hidden."), turns[1], tools=[tool])
    assert "leaves out the descriptions of a tool's parameters" in said
    bare = {"type": "function", "function": tool["function"] | {"parameters": {"type": "object", "properties": {}}}}
    for sound in (bare, {"type": "function", "function": tool["function"] | {"parameters": None}}):
        assert write(base(tmp_path / "named", named + CHATML), *turns, tools=[sound])


def test_dropped_thoughts_are_reported(tokenizers: dict[str, Tokenizer]) -> None:
    turns = turn("user", "Hi"), turn("assistant", "<think>\nhm\n</think>\n\nHello.")
    assert write(tokenizers["deepseek_r1"], *turns).left_out == {"thoughts"}
    assert not write(tokenizers["qwen3"], *turns).left_out
    rewritten = turn("user", "Hi"), turn("assistant", "<think>hm</think>Hello.")
    assert not write(tokenizers["qwen3"], *rewritten).left_out


def test_dropped_names_are_reported(tokenizers: dict[str, Tokenizer], tmp_path: Path) -> None:
    turns = turn("user", "Hi", name="Ann"), turn("assistant", "Hello.")
    assert write(tokenizers["qwen25"], *turns).left_out == {"names"}
    assert not write(base(tmp_path, CHATML.replace("{{ m.role }}", "{{ m.role }} {{ m.name }}")), *turns).left_out


def test_names_of_system_turns_that_become_one_are_reported(tmp_path: Path) -> None:
    tokenizer = base(tmp_path, CHATML.replace("{{ m.role }}", "{{ m.role }} {{ m.name }}"))
    named, talk = turn("developer", "Be brief.", name="Ann"), CASES["single"]["messages"]
    alone = write(tokenizer, named, *talk)
    assert "system Ann\nBe brief." in alone.text and not alone.left_out
    together = write(tokenizer, turn("system", "Be kind."), named, *talk)
    assert "Be kind.\n\nBe brief." in together.text and together.left_out == {"names"}


def test_a_shape_is_written_once_and_the_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = base(tmp_path, CHATML)
    monkeypatch.setattr(completeness, "MAX_SHAPES", 3)
    for _ in range(4):
        write(tokenizer, turn("user", "Hi"), turn("assistant", "Hello."))
    assert len(tokenizer.omissions) == 1
    for length in range(1, 9):
        write(tokenizer, *[turn("user", "Hi"), turn("assistant", "Hello.")] * length)
    assert len(tokenizer.omissions) <= 3


@settings(max_examples=60)
@given(
    st.sampled_from(list(FAMILIES)),
    st.lists(st.tuples(st.sampled_from(["system", "developer", "user", "assistant"]), st.text("ab <>\n", max_size=6))),
)
def test_no_turn_vanishes(tokenizers: dict[str, Tokenizer], family: str, turns: list[tuple[str, str]]) -> None:
    words = [f"w{index}{text}x" for index, (_, text) in enumerate(turns)]
    said = [turn(role, word) for (role, _), word in zip(turns, words, strict=True)]
    try:
        chat = write(tokenizers[family], *said, turn("assistant", "end"))
    except InvalidRequest:
        return
    assert all(word in chat.text for word in words)
