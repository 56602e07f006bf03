"""Recipes that use models, run against a server on loopback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from corpus.generation.endpoints import INSTALLATION, ModelEndpoint
from corpus.generation.generating import Generation
from corpus.generation.model_rows import ModelAccess
from corpus.keys import stage_key
from corpus.shards import ShardIndex, checked_shards
from shared.settings import RemoteModel

KEY = "sk-test-key-of-the-provider-1234"
ROW = {"prompt": "{{ item.q }}", "response": "{{ item.a }}"}
NUMBER = {"name": "n", "sampler": "sequence"}
QUESTION = {"name": "q", "template": "Question {{ item.n }} about printers?"}
ANSWER: dict[str, Any] = {"name": "a", "method": "answer", "model": "helper"}


def write(folder: Path, **fields: Any) -> Path:
    """A recipe; JSON is YAML."""
    whole = {"rows": 10, "terms": "permits_training", "columns": [NUMBER, QUESTION, ANSWER], "row": ROW, **fields}
    (folder / "recipe.yaml").write_text(json.dumps({key: value for key, value in whole.items() if value is not None}))
    return folder / "recipe.yaml"


def access(url: str, **fields: Any) -> ModelAccess:
    """The model ``helper`` at a server; others are the installation's, at the same address."""
    remote = {"helper": RemoteModel.model_validate({"url": url, "key": KEY, "model": "helper-large"})}
    ours = {"installation": lambda name: ModelEndpoint(name, INSTALLATION, url, name, "mens-key")}
    return ModelAccess(**{"remote": remote, "redaction_key": b"k", **ours, **fields})


def stage(recipe: Path, url: str, rows: int | None = None, **fields: Any) -> Generation:
    """The stage of a recipe."""
    return Generation(recipe, rows, access(url, **fields))


def run(
    recipe: Path, url: str, target: Path, rows: int | None = None, **fields: Any
) -> tuple[ShardIndex, list[dict[str, Any]]]:
    """Run a recipe; return the index and the rows."""
    generation = stage(recipe, url, rows, **fields)
    key = stage_key(generation.name, generation.version, generation.parameters(), generation.inputs())
    return generation.run(target, key), rows_of(target)


def rows_of(target: Path) -> list[dict[str, Any]]:
    """The rows of a finished folder."""
    return [json.loads(line) for path in checked_shards(target) for line in path.read_bytes().splitlines()]


def files_of(target: Path) -> dict[str, bytes]:
    """The files of the rows, with their content; without responses."""
    return {path.name: path.read_bytes() for path in target.iterdir() if path.is_file()}
