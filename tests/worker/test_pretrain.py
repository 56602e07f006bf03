"""The tiny base model: a folder that every reader accepts, a template that marks labels, the same bytes for a seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer, PreTrainedTokenizerBase

from shared.base_models.families import SPECS, TINY_FAMILIES, Family
from shared.tokenization.tokenizer import Tokenizer
from worker.pretrain import VOCAB_SIZE, build_base, read_corpus, train_tokenizer
from worker.training.data.dataset import refuse_other_tokens
from worker.training.model.load import load_tokenizer

CORPUS = Path(__file__).parents[2] / "examples" / "base_corpus.jsonl"
STEPS = 3

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is a bug?"},
    {"role": "assistant", "content": "A mistake in a program."},
    {"role": "user", "content": "And a fix?"},
    {"role": "assistant", "content": "A change that takes it away."},
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models") / "base"
    build_base(out, CORPUS, steps=STEPS)
    return out


@pytest.fixture(scope="module")
def tokenizer(base: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(base)


def test_folder_is_complete_and_nothing_is_left_next_to_it(base: Path) -> None:
    assert sorted(file.name for file in base.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert [entry.name for entry in base.parent.iterdir()] == ["base"]


def test_every_file_can_be_read_by_another_user(base: Path) -> None:
    assert {file.stat().st_mode & 0o777 for file in base.iterdir()} == {0o644}


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_model_loads_in_fp32_with_tied_embeddings(tmp_path: Path, family: Family) -> None:
    build_base(tmp_path / "base", CORPUS, family=family, steps=1)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    assert model.config.model_type == SPECS[family].model_types[-1]
    assert model.dtype == torch.float32
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.shape == (VOCAB_SIZE, 128)


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_transformers_makes_the_tokens_that_tokenizer_json_says(tmp_path: Path, family: Family) -> None:
    """For Qwen2 and Qwen3.5 it takes a class of its own, whose rules are not those of an ordinary byte-level tokenizer."""
    rows = read_corpus(CORPUS)
    train_tokenizer(rows, family).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": SPECS[family].model_types[0]}))
    refuse_other_tokens(Tokenizer.load(tmp_path), load_tokenizer(tmp_path), [])


def test_composite_model_computes_what_its_language_part_does(tmp_path: Path) -> None:
    """Built as the hub has the family; a program that reads the text-only class gets the same model."""
    build_base(tmp_path / "base", CORPUS, family=Family.QWEN3_5, steps=1, composite=True)
    ids = torch.arange(3, 40)[None]
    whole = AutoModelForImageTextToText.from_pretrained(tmp_path / "base")
    language = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    assert whole.config.model_type == "qwen3_5" and whole.lm_head.weight is whole.get_input_embeddings().weight
    with torch.no_grad():
        assert torch.equal(whole(input_ids=ids).logits, language(input_ids=ids).logits)


def test_generation_stops_at_the_end_of_a_turn(base: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    generation = json.loads((base / "generation_config.json").read_text())
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.eos_token_id in generation["eos_token_id"]
    assert generation["pad_token_id"] == tokenizer.pad_token_id == tokenizer.convert_tokens_to_ids("<|endoftext|>")


def test_template_is_chatml(tokenizer: PreTrainedTokenizerBase) -> None:
    text = tokenizer.apply_chat_template(CHAT[:2], tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is a bug?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_template_marks_the_assistants_tokens_and_the_end_token(tokenizer: PreTrainedTokenizerBase) -> None:
    encoded = tokenizer.apply_chat_template(CHAT, return_dict=True, return_assistant_tokens_mask=True)
    marked = [id_ for id_, mark in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True) if mark]
    assert tokenizer.decode(marked) == "A mistake in a program.<|im_end|>A change that takes it away.<|im_end|>"


def test_prompt_is_the_beginning_of_the_whole_chat(tokenizer: PreTrainedTokenizerBase) -> None:
    prompt = tokenizer.apply_chat_template(CHAT[:4], return_dict=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template(CHAT, return_dict=False)
    assert whole[: len(prompt)] == prompt


def test_template_refuses_a_role_it_does_not_know(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(Exception, match="not by critic"):
        tokenizer.apply_chat_template([{"role": "critic", "content": "42"}], tokenize=False)


def test_template_writes_tools_and_marks_the_calls(tokenizer: PreTrainedTokenizerBase) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    chat = [
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": "I will.", "tool_calls": [call, call]},
        {"role": "tool", "content": "2", "tool_call_id": "1"},
    ]
    tools = [{"type": "function", "function": {"name": "add"}}]
    text = tokenizer.apply_chat_template(chat, tools=tools, tokenize=False)
    called = '\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert text == (
        '<|im_start|>tools\n{"type": "function", "function": {"name": "add"}}\n<|im_end|>\n'
        f"<|im_start|>user\nAdd.<|im_end|>\n<|im_start|>assistant\nI will.{called}{called}<|im_end|>\n"
        "<|im_start|>tool\n2<|im_end|>\n"
    )
    encoded = tokenizer.apply_chat_template(chat, tools=tools, return_dict=True, return_assistant_tokens_mask=True)
    marked = [id_ for id_, mark in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True) if mark]
    assert tokenizer.decode(marked) == f"I will.{called}{called}<|im_end|>"


@pytest.mark.parametrize(
    "text", ["", " two  spaces ", "naïve café — 数据 🙂\n\ttab", "a\u0301 \u200d\u0000 \r\n", "#1/2_x"]
)
def test_any_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_one_token_each(tokenizer: PreTrainedTokenizerBase) -> None:
    for token in ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]:
        assert tokenizer.encode(token) == [tokenizer.convert_tokens_to_ids(token)]
    assert len(tokenizer) <= VOCAB_SIZE


def test_same_seed_gives_the_same_bytes(base: Path, tmp_path: Path) -> None:
    build_base(tmp_path / "again", CORPUS, steps=STEPS)
    build_base(tmp_path / "other", CORPUS, steps=STEPS, seed=1)
    for file in base.iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes(), file.name
    assert (tmp_path / "other" / "model.safetensors").read_bytes() != (base / "model.safetensors").read_bytes()


def test_training_lowers_the_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"text": "one two three four"}\n' * 16)
    build_base(tmp_path / "base", corpus, steps=60)
    first, last = (line.split() for line in capsys.readouterr().out.splitlines())
    assert (first[1], last[1]) == ("50/60", "60/60")
    assert float(last[3]) < 0.5


def test_existing_folder_is_never_overwritten(base: Path) -> None:
    before = (base / "model.safetensors").read_bytes()
    with pytest.raises(FileExistsError):
        build_base(base, CORPUS, steps=1)
    assert (base / "model.safetensors").read_bytes() == before


def test_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("worker.pretrain.os.rename", fail)
    with pytest.raises(OSError, match="disk full"):
        build_base(tmp_path / "base", CORPUS, steps=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("row", ['{"rows": []}', '{"text": "a", "messages": []}'])
def test_corpus_row_needs_text_or_messages(tmp_path: Path, row: str) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"text": "fine"}\n' + row + "\n")
    with pytest.raises(ValueError, match=r"corpus\.jsonl, line 2"):
        read_corpus(corpus)
