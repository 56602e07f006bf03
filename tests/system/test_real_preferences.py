"""DPO on SmolLM2-135M-Instruct: pairs that prefer the short answer make its answers to other questions short.

The rejected answers are its own, greedy and cut at 32 tokens. ``MENS_TEST_SEEDS=3 pytest tests/system/test_real_preferences.py -s`` trains with
three seeds and prints a row of the table in docs/preference.md for each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.loop import Installation, mens
from tests.system.real_base import REAL, finish, real_installation

FILES = Path(__file__).parent
SHORT = r"^\s*\S+(\s+\S+){0,4}\s*$"
"""At most five words."""
SEEDS = range(1, 1 + int(os.environ.get("MENS_TEST_SEEDS", "1")))
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation that serves SmolLM2 and nothing else."""
    with real_installation(tmp_path_factory.mktemp("preferences")) as installation:
        yield installation


def prefer(installation: Installation, seed: int) -> str:
    """Id of the adapter of a job that trains on the pairs, straight from the base."""
    file = installation.upload_bytes("pairs.jsonl", (FILES / "short_answers.jsonl").read_bytes())
    steps = {"epochs": 3, "batch_size": 4, "grad_accum": 1, "learning_rate": 1e-4, "warmup_steps": 1}
    contract: dict[str, Any] = {
        "model": {"name": REAL},
        "data": {"train_file": file, "validation_split_ratio": 0.0},
        "method": {"type": "dpo"},
        "quant": {"base": "none"},
        "exec": steps | {"seed": seed, "checkpoint_every": 100},
    }
    body = {"kind": "finetune", "name": f"short-{seed}", "contract": contract}
    job = finish(installation, str(installation.call("POST", "/v1/jobs", json=body)["id"]))
    return str(job["result"]["adapter_id"])


@pytest.mark.parametrize("seed", SEEDS)
def test_tuned_model_wins_on_questions_that_it_was_not_trained_on(real: Installation, seed: int) -> None:
    adapter, rows = prefer(real, seed), FILES / "short_answers.heldout.jsonl"
    options = ("--check", f"regex={SHORT}", "--max-tokens", "32", "--yes", "--json")
    done = mens(
        "eval", "run", str(rows), "--model", adapter, "--against", REAL, *options, home=real.stack.home, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)["comparisons"]["regex"]
    print(f"seed {seed}: short {found['old']:.2f} -> {found['new']:.2f}; {found['win_rate']}")
    assert found["items"] == len(rows.read_text().splitlines())
    assert found["win_rate"]["interval"][0] > 0.5, found
    assert found["new"] > found["old"]
