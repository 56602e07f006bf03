"""Mix files: every fault is reported with its field and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from corpus.mixing.mix_file import DEFAULT_SEED, read_mix
from shared.errors import Code, InvalidRequest

GOOD = "output: train.jsonl\nsources:\n  - {path: a.jsonl}\n"


def test_defaults_are_those_of_the_original(tmp_path: Path) -> None:
    (tmp_path / "mix.yaml").write_text(GOOD)
    mix = read_mix(tmp_path / "mix.yaml")
    (source,) = mix.sources
    assert (mix.seed, source.weight, source.optional, source.record_format) == (DEFAULT_SEED, 1.0, False, None)


@pytest.mark.parametrize(
    ("text", "param", "line"),
    [
        (GOOD + "sede: 1\n", "sede", 4),
        (GOOD.replace("path", "paht"), "sources.0.path", 3),
        (GOOD + "holdout: {rows: 0}\n", "holdout.rows", 4),
        (GOOD + "dedup: {near: 0.5}\n", "dedup.near", 4),
        (GOOD.replace("a.jsonl}", "a.jsonl, weight: .nan}"), "sources.0.weight", 3),
        (GOOD.replace("a.jsonl}", "a.jsonl, max_share: 1}"), "sources.0.max_share", 3),
        (GOOD.replace("a.jsonl}", "a.jsonl, record_format: csv}"), "sources.0.record_format", 3),
        ("output: train.jsonl\nsources: []\n", "sources", 2),
        ("output: a\noutput: b\n", "output", 2),
        ("- a\n", None, 1),
        ("a: [\n", None, 2),
        ("a: \xe9".encode("latin-1"), None, None),
    ],
)
def test_fault_is_named(tmp_path: Path, text: str | bytes, param: str | None, line: int | None) -> None:
    (tmp_path / "mix.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidRequest) as raised:
        read_mix(tmp_path / "mix.yaml")
    assert raised.value.code == Code.CORPUS_RECIPE_INVALID
    assert (raised.value.param, raised.value.details["line"]) == (param, line)
