"""Two names for one layer: its name in the text-only class, and its name in the base's files.

transformers loads a composite Qwen3.5 (``model.language_model.layers…`` in its files) as a text-only model
(``model.layers…``), and a bare GPT-2 (``h…``) under ``transformer.h…``. An adapter names its layers as the base's files
do: the server uses those names, and silently ignores layers with any other name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from shared.base_models.config import parse_model_config
from shared.base_models.tensors import detect_namespace
from shared.base_models.weights import read_folder_tensors

T = TypeVar("T")
PEFT_PREFIX = "base_model.model"


def namespaces(base: Path) -> tuple[str, str]:
    """Return the prefixes of the blocks' names: (in the class that is trained, in the base's files)."""
    config = parse_model_config(json.loads((base / "config.json").read_bytes()))
    return config.spec.namespace, detect_namespace(config, read_folder_tensors(base))


def renamed(weights: Mapping[str, T], source: str, target: str) -> dict[str, T]:
    """Move the layers of PEFT's weights from one namespace to another; weights outside of it (a head) stay."""
    old, new = (".".join(filter(None, (PEFT_PREFIX, namespace))) + "." for namespace in (source, target))
    outside = f"{PEFT_PREFIX}.lm_head."
    return {
        key if key.startswith(outside) or not key.startswith(old) else new + key.removeprefix(old): value
        for key, value in weights.items()
    }
