"""SmolLM2-135M-Instruct for tests: the folder of `bench/harness/smollm2.py`, and its catalogue entry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.harness import smollm2
from bench.harness.command import PeerMissing
from cli.standalone.smollm2 import LICENSE
from shared.base_models.catalog import BaseModelEntry, LocalSource, digest_model_folder


def smollm2_gguf() -> Path:
    """The package's GGUF file, Q4_1; it must not be modified."""
    return _or_fail(smollm2.smollm2_gguf)


def smollm2_folder() -> Path:
    """The model as a base folder (bfloat16, 269 MB); copy it before changing a file."""
    return _or_fail(smollm2.smollm2_folder)


def smollm2_entry(name: str = smollm2.SMOLLM2) -> BaseModelEntry:
    """The model's catalogue entry, with its folder under `.tools/`."""
    folder = smollm2_folder()
    return BaseModelEntry(
        name=name, source=LocalSource(path=str(folder)), digests=digest_model_folder(folder), license=LICENSE
    )


def _or_fail(fetch: Callable[[], Path]) -> Path:
    try:
        return fetch()
    except PeerMissing as error:
        pytest.fail(str(error), pytrace=False)
