"""The field for which a misspelt path was probably meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contract.field_names import contract_paths, nearest_field


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("optimizer.learnin_rate", "exec.learning_rate"),
        ("optimizer.learning_rate", "exec.learning_rate"),
        ("exec.epoch", "exec.epochs"),
        ("exec.learning-rate", "exec.learning_rate"),
        ("adapter.lora_alpa", "adapter.alpha"),
        ("artifact.aliass", "artifact.alias"),
        ("exe", "exec"),
        ("lr", "exec.learning_rate"),
        ("nothing.rank", "adapter.rank"),
        ("data.context_filter.categorys", "data.context_filter.categories"),
        ("exec.zzzzzzzz", None),
        ("zzzzzzzz.qqqqqqqq", None),
    ],
)
def test_nearest_field(path: str, meant: str | None) -> None:
    assert nearest_field(path) == meant


@given(st.text(max_size=30))
def test_any_path_has_a_field_of_the_contract_or_none(path: str) -> None:
    meant = nearest_field(path)
    sections = {name.partition(".")[0] for name in contract_paths()}
    assert meant is None or meant.partition(".")[0] in sections
