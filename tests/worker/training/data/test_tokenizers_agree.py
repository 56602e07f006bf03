"""The label builder gives the same tokens for a text as transformers, and so as the serving tier."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from shared.errors import Code, JobFailed
from shared.tokenization.tokenizer import Tokenizer
from worker.training.data.dataset import refuse_other_tokens
from worker.training.data.prepared import Row

TEXT = "What is a bug? A mistake — 数据 🙂."


def test_the_base_s_own_tokenizers_agree(tiny_base: Path, tokenizer):
    labeller = Tokenizer.load(tiny_base)
    ids = np.array(labeller.encode(TEXT).ids, dtype=np.uint32)
    refuse_other_tokens(labeller, tokenizer, [Row(1, ids, np.ones(len(ids), dtype=np.float32), 5, 1.0)])


def test_a_tokenizer_json_that_says_otherwise_stops_the_job(tiny_base: Path, tokenizer, tmp_path: Path):
    other = tmp_path / "other"
    shutil.copytree(tiny_base, other)
    content = json.loads((other / "tokenizer.json").read_text())
    content["normalizer"] = {"type": "Lowercase"}
    (other / "tokenizer.json").write_text(json.dumps(content))
    labeller = Tokenizer.load(other)
    with pytest.raises(JobFailed) as refused:
        refuse_other_tokens(labeller, tokenizer, [])
    assert refused.value.code == Code.TOKENIZER_MISMATCH
    assert refused.value.remedy
