"""Which parser reads tool calls and thoughts: what the template writes decides, then what the settings say."""

from __future__ import annotations

import dataclasses

import pytest

from serving.parsers import Parsers, choose_parsers
from serving.settings import ServingSettings
from tests.serving.launches import BASES, QWEN35, XML_TEMPLATE, Base, load_tokenizer
from tests.shared.families import FAMILIES

OPEN = ServingSettings(serving_base="b", serving_tool_parser=None, serving_reasoning_parser=None)
THINKS = BASES["qwen3.5-4b"]

SHOWN = {
    "mens-tiny": Parsers("hermes"),
    "qwen3-8b": Parsers("hermes", "qwen3"),
    "qwen2.5-7b": Parsers("hermes"),
    "llama3-70b": Parsers("llama3_json"),
    "mistral-7b": Parsers("mistral"),
    "qwen3.5-4b": Parsers("qwen3_xml", "qwen3"),
    "zephyr-7b": Parsers(),
}


@pytest.mark.parametrize("name", SHOWN)
def test_the_template_shows_which(name, tmp_path):
    assert choose_parsers(OPEN, load_tokenizer(BASES[name], tmp_path)) == SHOWN[name]


@pytest.mark.parametrize("family", ["llama3", "mistral_nemo"])
def test_a_parser_whose_token_the_base_lacks_would_keep_vllm_from_starting(family, tmp_path):
    assert choose_parsers(OPEN, load_tokenizer(Base({}, FAMILIES[family]), tmp_path)) == Parsers()


def test_a_template_that_names_two_is_taken_at_what_it_writes(tmp_path):
    """Qwen3.5's prompt explains calls by an example, and other prompts list the tools."""
    tools_only = '{{ tools | tojson if tools }}<tool_call>\n{"name": "example"}\n{% for m in messages %}{{ m.content }}{% endfor %}'
    assert choose_parsers(OPEN, load_tokenizer(Base({}, FAMILIES["zephyr"], tools_only), tmp_path)) == Parsers()


def test_a_template_that_refuses_calls_still_shows_its_turns(tmp_path):
    refusing = "{% if tools %}{{ raise_exception('no tools') }}{% endif %}" + FAMILIES["chatml_marked"].template
    base = Base({}, FAMILIES["chatml_marked"], refusing)
    assert choose_parsers(OPEN, load_tokenizer(base, tmp_path)) == Parsers("hermes")


def test_thoughts_that_are_only_begun_in_the_prompt_are_no_learnt_ones(tmp_path):
    """Else an answer without `</think>` would be all thought, and its content null."""
    unlearnt = XML_TEMPLATE.replace("{{- '<think>\\n\\n</think>\\n\\n' -}}", "")
    assert unlearnt != XML_TEMPLATE
    base = dataclasses.replace(THINKS, template=unlearnt)
    assert choose_parsers(OPEN, load_tokenizer(base, tmp_path)) == Parsers("qwen3_xml", None)


def test_thoughts_in_the_system_prompt_are_nobody_s(tmp_path):
    talking = "{{ 'Never write </think>.' }}" + FAMILIES["chatml_marked"].template
    base = Base({}, FAMILIES["chatml_marked"], talking)
    assert choose_parsers(OPEN, load_tokenizer(base, tmp_path)).reasoning is None


def test_settings_win(tmp_path):
    tokenizer = load_tokenizer(THINKS, tmp_path)
    named = ServingSettings(serving_base="b", serving_tool_parser="qwen3_coder", serving_reasoning_parser="deepseek_r1")
    assert choose_parsers(named, tokenizer) == Parsers("qwen3_coder", "deepseek_r1")
    off = ServingSettings(serving_base="b", serving_tool_parser="off", serving_reasoning_parser="off")
    assert choose_parsers(off, tokenizer) == Parsers()


def test_a_base_without_a_template_has_no_form_of_calls():
    assert choose_parsers(OPEN, None) == Parsers()
    assert choose_parsers(ServingSettings(serving_base="b", serving_tool_parser="hermes"), None) == Parsers("hermes")


def test_two_templates_are_asked_each_for_its_own(tmp_path):
    """A base may have a second template for chats with tools."""
    import json

    folder = tmp_path / "base"
    load_tokenizer(Base({}, QWEN35), folder)
    (folder / "chat_template.jinja").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    plain = FAMILIES["chatml_marked"].template
    config["chat_template"] = [
        {"name": "default", "template": plain},
        {"name": "tool_use", "template": XML_TEMPLATE},
    ]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    from shared.tokenizer import Tokenizer

    assert choose_parsers(OPEN, Tokenizer.load(folder)) == Parsers("qwen3_xml", None)
