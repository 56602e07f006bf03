"""A tiny base model, pretrained on the bundled text in seconds."""

from __future__ import annotations

import os
import shutil
from enum import StrEnum

from cli.standalone.base_changes import check_name
from cli.standalone.base_sources import add
from cli.standalone.worker_programs import PROJECT, run_worker_program
from shared.base_models.catalog import BaseModelEntry, LocalSource
from shared.errors import Conflict
from shared.settings import Settings

TINY_LEARNING_RATE = 4e-3
"""Twenty times the usual learning rate, because the model has only a million parameters."""
CORPUS = PROJECT / "examples" / "base_corpus.jsonl"


class TinyFamily(StrEnum):
    """Architectures for which a tiny base can be built."""

    QWEN2 = "qwen2"
    QWEN3 = "qwen3"
    QWEN3_5 = "qwen3.5"
    LLAMA = "llama"
    MISTRAL = "mistral"

    @property
    def in_config(self) -> str:
        """Its name in a config.json, which has no dots."""
        return self.value.replace(".", "_")


def build(
    settings: Settings,
    name: str,
    *,
    family: TinyFamily = TinyFamily.QWEN3,
    composite: bool = False,
    steps: int | None = None,
    seed: int = 0,
    allow_copy: bool = False,
) -> BaseModelEntry:
    """Make a tiny base unless its folder exists already, and add it to the catalogue.

    Args:
        allow_copy: accept files that the catalogue has under another name; the same options and seed make the same files.

    Raises:
        MensError: an alias has the base's name, the folder does not contain a base, or the catalogue has its files
            under another name; then the new folder is removed.
    """
    check_name(settings, name)
    folder = settings.home / "bases" / name
    is_new = not folder.exists()
    if is_new:
        folder.parent.mkdir(parents=True, exist_ok=True)
        options = ["--family", family.in_config, "--seed", str(seed), *(["--steps", str(steps)] if steps else [])]
        options += ["--composite"] if composite else []
        # One thread, because a model this small is many times slower when threads compete.
        run_worker_program("worker.pretrain", str(folder), "--corpus", str(CORPUS), *options, threads=1)
    source = LocalSource(path=os.path.relpath(folder, settings.catalog_path.parent))
    try:
        return add(settings, name, source, "Apache-2.0", TINY_LEARNING_RATE, checked=True, allow_copy=allow_copy)
    except Conflict:
        if is_new:
            shutil.rmtree(folder)
        raise
