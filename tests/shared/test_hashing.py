"""Canonical JSON: one byte form per value, on every machine."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.hashing import CHUNK_BYTES, canonical_json, digest_file, digest_json

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4), max_leaves=12
)


def reversed_keys(value: Any) -> Any:
    """The same value with every object's keys in the other order."""
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(item) for item in value] if isinstance(value, list) else value


@given(values)
def test_key_order_does_not_matter(value: Any) -> None:
    assert canonical_json(reversed_keys(value)) == canonical_json(value)


@given(values)
def test_canonical_json_loses_nothing(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value


@given(values, values)
def test_different_values_have_different_bytes(one: Any, other: Any) -> None:
    if canonical_json(one) == canonical_json(other):
        assert one == other


@given(st.lists(st.integers(), max_size=4), st.dictionaries(st.sampled_from("abcd"), st.integers()))
def test_canonical_json_has_no_white_space(items: list[int], mapping: dict[str, int]) -> None:
    assert not set(canonical_json([items, mapping])) & set(b" \t\n\r")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_values_that_json_does_not_have_are_refused(bad: float) -> None:
    with pytest.raises(ValueError):
        canonical_json({"deep": [{"value": bad}]})


def test_list_order_matters() -> None:
    assert digest_json([1, 2]) != digest_json([2, 1])


def test_golden_bytes() -> None:
    value = {"b": [1, 2.5, 1e-05, True, None], "a": {"ü": 'é\n"', "Z": ""}}
    assert canonical_json(value) == '{"a":{"Z":"","ü":"é\\n\\""},"b":[1,2.5,1e-05,true,null]}'.encode()


@pytest.mark.parametrize(
    ("value", "digest"),
    [
        ({}, "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
        ({"b": 2, "a": [1, 2.5, None, "é"]}, "41fdf2d4c9621a6b097ed5a34d4d607b8b59ce8d18fd668dcc006ce7d1d1fda1"),
        ("mens", "e322a0f310ea9df6f11c9dc896dbdb684e34813fcd98d94d3f7e7e89f0d4e14d"),
    ],
)
def test_golden_digests(value: Any, digest: str) -> None:
    assert digest_json(value) == digest


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES + 7])
def test_file_digest_is_the_sha256_of_its_bytes(tmp_path: Path, size: int) -> None:
    content = bytes(range(251)) * (size // 251 + 1)
    (tmp_path / "file").write_bytes(content[:size])
    assert digest_file(tmp_path / "file") == hashlib.sha256(content[:size]).hexdigest()
