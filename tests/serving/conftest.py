"""The installation of these tests, written without torch: the tests read files, and no model computes."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.serving_installation import ServingInstallation, make_serving_installation
from tests.support.tiny_base import write_adapter, write_base

SHAPE = {"hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 256}


@pytest.fixture(scope="session")
def serving_installation(tmp_path_factory: pytest.TempPathFactory) -> ServingInstallation:
    folder = tmp_path_factory.mktemp("serving")
    return make_serving_installation(folder, partial(write_base, **SHAPE), write_adapter)
