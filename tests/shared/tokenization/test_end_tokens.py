"""End tokens of bases whose config files and chat template agree or disagree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shared.tokenization.end_tokens import end_token_note, folder_end_token_note, with_end_tokens
from shared.tokenization.tokenizer import Tokenizer
from tests.support.template_families import FAMILIES, make_base


def base_naming(folder: Path, family: str, eos: str | None) -> Path:
    """A family's base whose tokenizer_config.json names another EOS, or none."""
    make_base(folder, FAMILIES[family])
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"eos_token": eos}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_note_names_both_tokens(tmp_path):
    note = end_token_note(Tokenizer.load(base_naming(tmp_path, "qwen3", "<|endoftext|>")))
    assert note and "ends turns with <|im_end|>" in note and "name <|endoftext|>" in note


def test_note_of_a_base_whose_config_names_nothing(tmp_path):
    note = folder_end_token_note(base_naming(tmp_path, "qwen3", None))
    assert note and "name no end token" in note


@pytest.mark.parametrize("family", ["chatml_marked", "llama2", "harmony", "command_r"])
def test_no_note_where_they_agree(tmp_path, family):
    assert folder_end_token_note(make_base(tmp_path, FAMILIES[family])) is None


def test_no_note_of_a_folder_without_a_template(tmp_path):
    make_base(tmp_path, FAMILIES["qwen3"])
    (tmp_path / "chat_template.jinja").unlink()
    assert folder_end_token_note(tmp_path) is None


@pytest.mark.parametrize(
    ("config", "ids"),
    [
        ({"eos_token_id": 3}, {3}),
        ({"eos_token_id": [3, 4]}, {3, 4}),
        ({"text_config": {"eos_token_id": 5}}, {5}),
        ({"eos_token_id": 3, "text_config": {"eos_token_id": 5}}, {3}),
        ({"eos_token_id": None}, set()),
    ],
)
def test_config_json_counts_without_generation_config(tmp_path, config, ids):
    make_base(tmp_path, FAMILIES["qwen3"])
    before = Tokenizer.load(tmp_path).end_ids
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert Tokenizer.load(tmp_path).end_ids == before | ids
    (tmp_path / "generation_config.json").write_text("{}")
    assert Tokenizer.load(tmp_path).end_ids == before


def test_generation_config_names_every_end_token(tmp_path):
    tokenizer = Tokenizer.load(base_naming(tmp_path, "qwen3", "<|endoftext|>"))
    assert with_end_tokens({"top_p": 0.5, "eos_token_id": 0}, tokenizer) == {
        "top_p": 0.5,
        "eos_token_id": sorted(tokenizer.end_ids),
    }


def test_generation_config_that_names_them_is_left_alone(tmp_path):
    tokenizer = Tokenizer.load(make_base(tmp_path, FAMILIES["chatml_marked"]))
    assert with_end_tokens({"top_p": 0.5}, tokenizer) == {"top_p": 0.5}
