"""A tokenizer that transformers reads differently is detected when the base is added, by a separate program."""

from __future__ import annotations

import json
import re

import pytest
from transformers import AutoTokenizer

from shared.errors import Code
from tests.support.tiny_base import write_base
from worker.bases.tokenizer_check import main
from worker.child_runtime import EXIT_FAILED


@pytest.fixture
def base(tmp_path):
    return write_base(tmp_path / "base")


def refusal(base, capsys):
    assert main([str(base)]) == EXIT_FAILED
    return json.loads(capsys.readouterr().out)


def test_class_of_the_family_reads_the_file_differently(base, capsys):
    """tokenizer_config.json names no class, so transformers takes that of Qwen3, with its own rules; the remedy helps."""
    error = refusal(base, capsys)
    assert (error["code"], error["kind"]) == (Code.TOKENIZER_MISMATCH, "ArtifactInvalid")
    named = re.search(r'"tokenizer_class": "(\w+)"', error["remedy"])
    config = json.loads((base / "tokenizer_config.json").read_text())
    (base / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": named[1]}))
    assert (main([str(base)]), capsys.readouterr().out) == (0, "")


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3_5"])
def test_family_whose_class_transformers_never_replaces(base, capsys, model_type):
    """The remedy's first half does not help such a base; the second does."""
    for file, change in (
        ("config.json", {"model_type": model_type}),
        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"}),
    ):
        (base / file).write_text(json.dumps(json.loads((base / file).read_text()) | change))
    error = refusal(base, capsys)
    assert "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)" in error["remedy"]
    AutoTokenizer.from_pretrained(base).save_pretrained(base)
    assert (main([str(base)]), capsys.readouterr().out) == (0, "")


def test_file_that_transformers_cannot_load(base, capsys):
    (base / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer", "eos_token": 7}))
    assert "cannot load" in refusal(base, capsys)["message"]


def test_code_of_a_repository_is_not_run(base, capsys, tmp_path):
    config = json.loads((base / "tokenizer_config.json").read_text())
    auto = {"auto_map": {"AutoTokenizer": ["own.Own", None]}, "tokenizer_class": "Own"}
    (base / "tokenizer_config.json").write_text(json.dumps(config | auto))
    (base / "own.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    main([str(base)])
    assert not (tmp_path / "run").exists()
