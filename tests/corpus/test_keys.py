"""Keys of stages: equal for equal work, and different for every difference."""

from __future__ import annotations

from typing import Any

import pytest

from corpus.keys import stage_key, stage_mark

STAGE: dict[str, Any] = {"name": "mix", "version": 1, "parameters": {"seed": 1, "near": 0.8}, "inputs": {"a": "1" * 64}}


def test_key_is_the_same_on_every_machine() -> None:
    assert stage_key(**STAGE) == "e5e43d6cc33308a93b57ed85d1f97e4e9ff9917429bc248a6403d3b398e375d9"
    assert stage_mark("mix", stage_key(**STAGE)) == "mix@e5e4"


def test_order_of_keys_does_not_matter() -> None:
    assert stage_key(**STAGE | {"parameters": {"near": 0.8, "seed": 1}}) == stage_key(**STAGE)


@pytest.mark.parametrize(
    "other", [{"name": "pull"}, {"version": 2}, {"parameters": {"seed": 2, "near": 0.8}}, {"inputs": {"a": "2" * 64}}]
)
def test_any_difference_gives_another_key(other: dict[str, Any]) -> None:
    assert stage_key(**STAGE | other) != stage_key(**STAGE)
