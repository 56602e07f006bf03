"""The choice of vLLM's parsers of tool calls and reasoning: by the settings, or else by the output of the template."""

from __future__ import annotations

import dataclasses
import json

import pytest

from serving.launch.parsers import Parsers, choose_parsers
from serving.settings import ServingSettings
from shared.tokenization.tokenizer import Tokenizer
from tests.serving.launch.launches import BASES, QWEN35, XML_TEMPLATE, Base, load_tokenizer
from tests.support.published_templates import make_published_base
from tests.support.template_families import FAMILIES

UNSET = ServingSettings(serving_base="b", serving_tool_parser=None, serving_reasoning_parser=None)
REASONS = BASES["qwen3.5-4b"]

CHOSEN = {
    "mens-tiny": Parsers("hermes"),
    "qwen3-8b": Parsers("hermes", "qwen3"),
    "qwen2.5-7b": Parsers("hermes"),
    "llama3-70b": Parsers("llama3_json"),
    "mistral-7b": Parsers("mistral"),
    "qwen3.5-4b": Parsers("qwen3_xml", "qwen3"),
    "zephyr-7b": Parsers(),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_parsers_are_chosen_by_template(name, tmp_path):
    assert choose_parsers(UNSET, load_tokenizer(BASES[name], tmp_path)) == CHOSEN[name]


PUBLISHED = {
    "qwen2_5": Parsers("hermes"),
    "qwen3": Parsers("hermes", "qwen3"),
    "qwen3_instruct_2507": Parsers("hermes"),
    "qwen3_5_think": Parsers("qwen3_xml", "qwen3"),
    "qwen3_5_nothink": Parsers("qwen3_xml", "qwen3"),
    "qwen3_6": Parsers("qwen3_xml", "qwen3"),
    "qwen3_8": Parsers("qwen3_xml", "qwen3"),
    "llama3": Parsers(),
    "llama3_1": Parsers("llama3_json"),
    "llama3_2": Parsers("llama3_json"),
}


@pytest.mark.network
@pytest.mark.parametrize("name", PUBLISHED)
def test_parsers_are_chosen_by_published_templates(name, tmp_path):
    assert choose_parsers(UNSET, Tokenizer.load(make_published_base(tmp_path, name))) == PUBLISHED[name]


@pytest.mark.parametrize("family", ["llama3", "mistral_nemo"])
def test_parser_whose_token_is_missing_is_not_chosen(family, tmp_path):
    assert choose_parsers(UNSET, load_tokenizer(Base({}, FAMILIES[family]), tmp_path)) == Parsers()


def test_examples_in_the_prompt_choose_no_parser(tmp_path):
    """Qwen3.5's prompt explains calls by an example, and other prompts list the tools."""
    tools_only = '{{ tools | tojson if tools }}<tool_call>\n{"name": "example"}\n{% for m in messages %}{{ m.content }}{% endfor %}'
    assert choose_parsers(UNSET, load_tokenizer(Base({}, FAMILIES["zephyr"], tools_only), tmp_path)) == Parsers()


def test_template_that_refuses_tools_is_recognised_by_its_turns(tmp_path):
    refusing = "{% if tools %}{{ raise_exception('no tools') }}{% endif %}" + FAMILIES["chatml_marked"].template
    base = Base({}, FAMILIES["chatml_marked"], refusing)
    assert choose_parsers(UNSET, load_tokenizer(base, tmp_path)) == Parsers("hermes")


def test_reasoning_opened_only_in_the_prompt_chooses_no_parser(tmp_path):
    """Otherwise an answer without `</think>` would be all reasoning, and its content null."""
    untrained = XML_TEMPLATE.replace("{{- '<think>\\n\\n</think>\\n\\n' -}}", "")
    assert untrained != XML_TEMPLATE
    base = dataclasses.replace(REASONS, template=untrained)
    assert choose_parsers(UNSET, load_tokenizer(base, tmp_path)) == Parsers("qwen3_xml", None)


def test_reasoning_mark_in_system_prompt_chooses_no_parser(tmp_path):
    mentioning = "{{ 'Never write </think>.' }}" + FAMILIES["chatml_marked"].template
    base = Base({}, FAMILIES["chatml_marked"], mentioning)
    assert choose_parsers(UNSET, load_tokenizer(base, tmp_path)).reasoning is None


def test_settings_override_the_template(tmp_path):
    tokenizer = load_tokenizer(REASONS, tmp_path)
    named = ServingSettings(serving_base="b", serving_tool_parser="qwen3_coder", serving_reasoning_parser="deepseek_r1")
    assert choose_parsers(named, tokenizer) == Parsers("qwen3_coder", "deepseek_r1")
    off = ServingSettings(serving_base="b", serving_tool_parser="off", serving_reasoning_parser="off")
    assert choose_parsers(off, tokenizer) == Parsers()


def test_base_without_template_gets_no_parsers():
    assert choose_parsers(UNSET, None) == Parsers()
    assert choose_parsers(ServingSettings(serving_base="b", serving_tool_parser="hermes"), None) == Parsers("hermes")


def test_each_of_two_templates_decides_its_own_parser(tmp_path):
    """A base may have a second template for chats with tools."""
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
    assert choose_parsers(UNSET, Tokenizer.load(folder)) == Parsers("qwen3_xml", None)
