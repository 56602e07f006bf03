"""DPO on SmolLM2-135M-Instruct: pairs that prefer the short answer make its answers to other questions short, straight from the base, and
from an adapter that was tuned to answer in whole sentences.

The rejected answers are its own, greedy and cut at 32 tokens. ``MENS_TEST_SEEDS=3 pytest tests/system/test_real_preferences.py -s`` trains with
three seeds and prints a row of each table in docs/preference.md.
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
FORGET = """version: "1"
gates: {forget: {max_degradation: 0.1}}
"""
SEEDS = range(1, 1 + int(os.environ.get("MENS_TEST_SEEDS", "1")))
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation that serves SmolLM2 and nothing else."""
    with real_installation(tmp_path_factory.mktemp("preferences")) as installation:
        yield installation


def prefer(
    installation: Installation, seed: int, parent: str | None = None, alias: str | None = None
) -> dict[str, Any]:
    """A job that trains on the pairs, straight from the base or from an adapter, once it has succeeded."""
    rows = (FILES / "short_answers.jsonl").read_bytes()
    sections = {
        "method": {"type": "dpo"},
        "adapter": {"continue_from": parent} if parent else {},
        "artifact": {"alias": alias} if alias else {},
    }
    return train(installation, f"short-{seed}", rows, sections, {"epochs": 3, "learning_rate": 1e-4, "seed": seed})


def train(
    installation: Installation, name: str, rows: bytes, sections: dict[str, Any], steps: dict[str, Any]
) -> dict[str, Any]:
    """A job over 16-bit weights in batches of four, once it has succeeded."""
    file = installation.upload_bytes(f"{name}.jsonl", rows)
    fixed = {"batch_size": 4, "grad_accum": 1, "warmup_steps": 1, "checkpoint_every": 100}
    contract: dict[str, Any] = {
        "model": {"name": REAL},
        "data": {"train_file": file, "validation_split_ratio": 0.0},
        "quant": {"base": "none"},
        "exec": fixed | steps,
    }
    body = {"kind": "finetune", "name": name, "contract": contract | sections}
    return finish(installation, str(installation.call("POST", "/v1/jobs", json=body)["id"]))


def compare(installation: Installation, model: str, against: str) -> dict[str, Any]:
    """Compare two models' answers to the questions that none was trained on, by their length."""
    rows = FILES / "short_answers.heldout.jsonl"
    options = ("--check", f"regex={SHORT}", "--max-tokens", "32", "--yes", "--json")
    done = mens(
        "eval",
        "run",
        str(rows),
        "--model",
        model,
        "--against",
        against,
        *options,
        home=installation.stack.home,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["comparisons"]["regex"]
    assert found["items"] == len(rows.read_text().splitlines())
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_tuned_model_wins_on_questions_that_it_was_not_trained_on(real: Installation, seed: int) -> None:
    adapter = str(prefer(real, seed)["result"]["adapter_id"])
    found = compare(real, adapter, REAL)
    print(f"seed {seed}: short {found['old']:.2f} -> {found['new']:.2f}; {found['win_rate']}")
    assert found["win_rate"]["interval"][0] > 0.5, found
    assert found["new"] > found["old"]


def test_a_model_that_wins_and_has_forgotten_does_not_take_the_alias(real: Installation, tmp_path: Path) -> None:
    """SFT teaches whole sentences, and DPO from it short answers, at a learning rate that costs a model of this size what it knew."""
    steps = {"epochs": 2, "learning_rate": 2e-4, "seed": 1}
    parent = str(train(real, "sentences", sentences(), {}, steps)["result"]["adapter_id"])
    policy = tmp_path / "policy.yaml"
    policy.write_text(FORGET)
    for command in (("policies", "put", "keeps", str(policy)), ("policies", "assign", "alias:short", "keeps")):
        mens(*command, home=real.stack.home, timeout=120).check_returncode()
    result = prefer(real, 1, parent, "short")["result"]
    found = compare(real, str(result["adapter_id"]), parent)
    receipt = real.call("GET", f"/v1/receipts/{result['receipt']['id']}")["receipt"]
    (gate,) = receipt["gates"]
    print(f"short {found['old']:.2f} -> {found['new']:.2f}; {found['win_rate']}; {gate['message']}")
    assert found["win_rate"]["interval"][0] > 0.5, found
    assert (gate["name"], gate["status"], receipt["compared_with"]) == ("forget", "failed", parent)
    assert (result["alias"]["moved"], result["alias"]["error"]["code"]) == (False, "GATE_FAILED")


def sentences() -> bytes:
    """The questions of the pairs with the answers that DPO rejects, as rows of conversations."""
    pairs = [json.loads(line) for line in (FILES / "short_answers.jsonl").read_text().splitlines()]
    return "".join(json.dumps({"messages": pair["prompt"] + pair["rejected"]}) + "\n" for pair in pairs).encode()
