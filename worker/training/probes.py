"""Probe sequences: a few encoded rows, by token id, with which the serving tier is asked whether the adapter acts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shared.labels import IGNORED, Example
from worker.rundir import PROBES_NAME, write_json

MAX_PROBES = 4
MAX_TOKENS = 256


def write_probes(run_dir: Path, examples: Sequence[Example]) -> None:
    """Write ``probes.json``: token ids and the positions (≥ 1) whose log-probabilities are compared.

    Positions are those the adapter was trained to change: the assistant's tokens.
    """
    probes = [probe for example in examples[:MAX_PROBES] if (probe := _probe(example))["positions"]]
    write_json(run_dir / PROBES_NAME, {"probes": probes})


def _probe(example: Example) -> dict[str, list[int]]:
    ids, labels = example.ids[-MAX_TOKENS:], example.labels[-MAX_TOKENS:]
    return {"token_ids": ids, "positions": [i for i, label in enumerate(labels) if i and label != IGNORED]}
