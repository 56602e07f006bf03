"""Probe chats: the trainer's own code and transformers agree on each, and templates may refuse some."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from shared.tokenization.served_form import served_tools
from shared.tokenization.tokenizer import Tokenizer
from tests.support.template_families import FAMILIES, make_base
from worker.jobs.certificates import template_report
from worker.probe_chats import CHATS, encode_chats, first_difference

TOOL_TEMPLATE = (
    "{% for tool in tools or [] %}[{{ tool | tojson }}]{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}({{ call.function.name }} {{ call.function.arguments | tojson }}){% endfor %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
STRICT = (
    "{% if tools %}{{ raise_exception('no tools') }}{% endif %}"
    "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no ' + m.role) }}{% endif %}"
    "<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
)


def write_tokenizer(folder: Path, template: str) -> Path:
    from transformers import PreTrainedTokenizerFast

    alphabet = {letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Backend(models.BPE(vocab=alphabet, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    ends = {"eos_token": "<|end|>", "pad_token": "<|end|>"}
    PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, **ends).save_pretrained(folder)
    return folder


@pytest.fixture
def tool_base(tmp_path):
    return write_tokenizer(tmp_path, TOOL_TEMPLATE)


def test_every_kind_of_chat_is_encoded(tool_base):
    encoded = encode_chats(Tokenizer.load(tool_base))
    assert encoded.skipped == []
    assert {chat.name for chat, _ in encoded.chats} >= {
        "system",
        "multi-turn",
        "learnt",
        "tools",
        "unicode",
        "thoughts",
    }
    assert all(ids for _, ids in encoded.chats)


def test_token_ids_equal_those_of_transformers(tool_base):
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast.from_pretrained(tool_base)
    for chat, ids in encode_chats(Tokenizer.load(tool_base)).chats:
        messages = json.loads(json.dumps(chat.messages))
        for message in messages:
            for call in message.get("tool_calls", []):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        text = theirs.apply_chat_template(
            messages, tools=served_tools(chat.tools), add_generation_prompt=chat.prompt, tokenize=False
        )
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids, chat.name


def test_refused_chats_are_skipped_and_named(tmp_path):
    encoded = encode_chats(Tokenizer.load(write_tokenizer(tmp_path, STRICT)))
    assert encoded.skipped == ["system", "tools"]
    assert [chat.name for chat, _ in encoded.chats] == ["plain", "multi-turn", "learnt", "unicode", "thoughts"]


@pytest.mark.parametrize("at", range(0, len(STRICT), 7))
def test_changed_template_byte_is_detected(tmp_path, at):
    """Any byte of the template: either it changes no id of any probe chat, or the report names a chat that differs."""
    ours = encode_chats(Tokenizer.load(write_tokenizer(tmp_path / "ours", STRICT)))
    changed = STRICT[:at] + ("~" if STRICT[at] != "~" else "-") + STRICT[at + 1 :]
    theirs = {}
    with suppress(Exception):  # a template that is invalid as a whole: every chat is refused
        found = encode_chats(Tokenizer.load(write_tokenizer(tmp_path / "theirs", changed))).chats
        theirs = {chat.name: ids for chat, ids in found}
    report = template_report(ours, [theirs.get(chat.name) for chat, _ in ours.chats])
    same = all(theirs.get(chat.name) == ids for chat, ids in ours.chats)
    assert report["equal"] == same
    assert same or report["difference"]["chat"] in report["chats"]


def test_chats_are_json_as_clients_send_it():
    assert all(isinstance(json.dumps([chat.messages, chat.tools]), str) for chat in CHATS)
    (call,) = next(chat for chat in CHATS if chat.name == "tools").messages[1]["tool_calls"]
    assert isinstance(call["function"]["arguments"], str)


ids = st.lists(st.integers(0, 9), max_size=8)


@given(ids, ids)
def test_first_difference_of_token_ids(ours, theirs):
    found = first_difference(ours, theirs)
    if found is None:
        assert ours == theirs
        return
    at = found["position"]
    assert ours[:at] == theirs[:at]
    assert found["trainer_id"] == (ours[at] if at < len(ours) else None)
    assert found["server_id"] == (theirs[at] if at < len(theirs) else None)
    assert found["trainer_id"] != found["server_id"]


# -- a call, as the template writes it --------------------------------------------------------------------------------

HERMES = '<tool_call>\n{"name": "look_up", "arguments": {"word": "bug", "limit": 2}}\n</tool_call>'
WRITTEN = {
    "chatml_marked": (HERMES, {}),
    "qwen25": (HERMES, {}),
    "qwen3": (HERMES, {"enable_thinking": False}),
    "gemma": None,  # knows no tools
    "mistral_nemo": None,  # begins with a special token
}


@pytest.mark.parametrize("family", WRITTEN)
def test_call_of_a_template(tmp_path, family):
    make_base(tmp_path, FAMILIES[family])
    assert encode_chats(Tokenizer.load(tmp_path)).call == WRITTEN[family]


def test_call_in_a_form_that_no_replica_knows_is_not_tested(tmp_path):
    assert encode_chats(Tokenizer.load(write_tokenizer(tmp_path, TOOL_TEMPLATE))).call is None
