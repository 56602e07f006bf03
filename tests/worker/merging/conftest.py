"""The folders to merge."""

from __future__ import annotations

import pytest

from tests.support.merge_inputs import MergeInputs, make_inputs


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> MergeInputs:
    """A small random base of two shards, and an adapter for it."""
    return make_inputs(tmp_path_factory.mktemp("inputs"))
