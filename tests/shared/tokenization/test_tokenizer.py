"""Tokenizers and templates, read from files in every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.errors import Code, InvalidRequest
from shared.tokenization.tokenizer import Tokenizer
from tests.support.template_families import FAMILIES, make_base

GEMMA = FAMILIES["gemma"]
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_base(tmp_path / "base", GEMMA)


def write_config(base: Path, **fields: Any) -> None:
    (base / "tokenizer_config.json").write_text(json.dumps(fields))


@pytest.mark.parametrize("form", ["text", "object"])
@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_special_tokens_in_both_files_and_forms(base: Path, form: str, file: str) -> None:
    (base / "tokenizer_config.json").unlink()
    bos = "<bos>" if form == "text" else {"content": "<bos>", "lstrip": False, "special": True}
    (base / file).write_text(json.dumps({"bos_token": bos, "pad_token": None}))
    assert Tokenizer.load(base).render(CHAT).text.startswith("<bos><start_of_turn>user")


def test_tokens_of_the_config_precede_the_older_map(base: Path) -> None:
    (base / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<eos>"}))
    write_config(base, bos_token="<bos>", added_tokens_decoder={})
    assert Tokenizer.load(base).render(CHAT).text.startswith("<bos>")
    write_config(base, bos_token="<bos>")
    assert Tokenizer.load(base).render(CHAT).text.startswith("<eos>")


def test_tokens_of_the_config_alone_are_added(base: Path) -> None:
    size = Tokenizer.load(base).backend.get_vocab_size()
    decoder = {str(size): {"content": "<new>", "special": True}}
    write_config(base, bos_token="<bos>", extra_token="<extra>", added_tokens_decoder=decoder)
    tokenizer = Tokenizer.load(base)
    assert tokenizer.encode("<new>").ids == [size]
    assert tokenizer.encode("<extra>").ids == [size + 1]


def test_template_is_read_from_the_config(base: Path) -> None:
    path = base / "chat_template.jinja"
    write_config(base, bos_token="<bos>", chat_template="other")
    assert Tokenizer.load(base).template.text == path.read_text(), "the file has priority"
    path.unlink()
    assert Tokenizer.load(base).render(CHAT).text == "other"


def test_template_for_tools_is_chosen_by_name(base: Path) -> None:
    (base / "chat_template.jinja").unlink()
    both = [{"name": "tool_use", "template": "with tools"}, {"name": "default", "template": "plain"}]
    write_config(base, chat_template=both)
    tokenizer = Tokenizer.load(base)
    assert tokenizer.render(CHAT).text == "plain"
    assert tokenizer.render(CHAT, [{"type": "function"}]).text == "with tools"
    write_config(base, chat_template=both[1:])
    assert Tokenizer.load(base).template_digest == tokenizer.template.digest != tokenizer.template_digest
    write_config(base, chat_template=both[:1])
    with pytest.raises(InvalidRequest, match="no chat template"):
        Tokenizer.load(base)


def test_missing_template_is_refused(base: Path) -> None:
    (base / "chat_template.jinja").unlink()
    with pytest.raises(InvalidRequest) as refused:
        Tokenizer.load(base)
    assert refused.value.code == Code.TEMPLATE_UNSUPPORTED


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff", b'{"version": "1.0"}'])
def test_missing_or_invalid_tokenizer_is_refused(base: Path, content: bytes | None) -> None:
    path = base / "tokenizer.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidRequest) as refused:
        Tokenizer.load(base)
    assert refused.value.code == Code.TOKENIZER_NOT_FOUND
    assert refused.value.remedy


def test_invalid_config_is_refused(base: Path) -> None:
    (base / "tokenizer_config.json").write_text("{")
    with pytest.raises(InvalidRequest, match=r"tokenizer_config\.json is not JSON"):
        Tokenizer.load(base)


@pytest.mark.parametrize("ends", [5, [5, 6]])
def test_end_tokens_of_the_generation_config_count(base: Path, ends: int | list[int]) -> None:
    before = Tokenizer.load(base).end_ids
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    assert Tokenizer.load(base).end_ids == before | ({5, 6} if isinstance(ends, list) else {5})


def test_template_without_end_tokens_has_none(tmp_path: Path) -> None:
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    assert Tokenizer.load(make_base(tmp_path / "plain", GEMMA, plain)).end_token is None
    refusing = "{{ raise_exception('never') }}"
    assert Tokenizer.load(make_base(tmp_path / "never", GEMMA, refusing)).end_token is None


def test_truncation_and_padding_of_the_file_are_off(base: Path) -> None:
    path = base / "tokenizer.json"
    content = json.loads(path.read_text())
    content["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(content))
    assert len(Tokenizer.load(base).encode("one two three four five").ids) > 4


@pytest.mark.parametrize(
    "text", ["plain words", " a  b\n\n c ", "Żółć 数据 👩‍👩‍👧🏽 e\u0301", "<bos>x<end_of_turn>", ""]
)
def test_offsets_cover_the_text(base: Path, text: str) -> None:
    """White space belongs to a token; a character of several tokens belongs to each of them."""
    tokenizer = Tokenizer.load(base)
    found = tokenizer.encode(text)
    assert tokenizer.decode(found.ids) == text
    covered = 0
    for start, end in found.offsets:
        assert start in (covered, covered - 1)
        assert end > start
        covered = end
    assert covered == len(text)


def test_digest_covers_everything_that_determines_ids_and_labels(tmp_path: Path) -> None:
    def digest(name: str, **files: str) -> str:
        folder = make_base(tmp_path / name, FAMILIES["chatml_marked"])
        for file, content in files.items():
            (folder / file.replace("__", ".")).write_text(content)
        return Tokenizer.load(folder).digest

    plain = digest("one")
    assert plain == digest("two")
    template = FAMILIES["chatml_marked"].template
    others = [
        digest("template", chat_template__jinja=template + " "),
        digest("end", generation_config__json='{"eos_token_id": 7}'),
        digest("named", tokenizer_config__json='{"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}'),
        digest("added", tokenizer_config__json='{"eos_token": "<|im_end|>", "pad_token": "<new>"}'),
    ]
    assert len({plain, *others}) == 5
