"""GGUF files that transformers would convert to a different model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.base_models.gguf_conversion import ROPE_FACTORS, check_convertible
from shared.base_models.gguf_file import read_gguf_header
from shared.errors import ArtifactInvalid, Code
from tests.support.gguf_files import tensors, write_gguf


def test_sound_file_passes(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    check_convertible(path, read_gguf_header(path))


@pytest.mark.parametrize(
    ("options", "code", "word"),
    [
        ({"architecture": "gemma2"}, Code.MODEL_FAMILY_UNSUPPORTED, "'gemma2'"),
        ({"ARCH__expert_count": 8}, Code.GGUF_UNSUPPORTED, "mixture of experts"),
        ({"ARCH__rope__scaling__type": "yarn"}, Code.GGUF_UNSUPPORTED, "rotary"),
        ({"weights": tensors() | {ROPE_FACTORS: np.ones(16, np.float32)}}, Code.GGUF_UNSUPPORTED, "rotary"),
        ({"split": "chatglm-bpe"}, Code.GGUF_UNSUPPORTED, "'chatglm-bpe'"),
    ],
)
def test_file_that_would_become_another_model(tmp_path: Path, options: dict[str, Any], code: Code, word: str) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", **options)
    with pytest.raises(ArtifactInvalid) as refused:
        check_convertible(path, read_gguf_header(path))
    assert (refused.value.code, word in refused.value.message) == (code, True)
    assert refused.value.remedy
