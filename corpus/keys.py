"""Keys of stages: equal keys mean equal output bytes, so a finished stage is recognised and not repeated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.hashing import digest_json

SHORT_KEY = 4
"""Hex digits of a key in the provenance of a row."""


def stage_key(name: str, version: int, parameters: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """Return the key of a stage (64 hex digits).

    Args:
        version: number in the code, increased when the same input would give different bytes.
        parameters: everything in the recipe that changes the output, as JSON values.
        inputs: SHA-256 of each input, by name. Where the order of inputs matters, pass it as a parameter.
    """
    return digest_json({"name": name, "version": version, "parameters": parameters, "inputs": inputs})


def stage_mark(name: str, key: str) -> str:
    """Return the name of a stage in a row's provenance: ``pull@6f1c``."""
    return f"{name}@{key[:SHORT_KEY]}"
