"""SFT, then DPO from the tuned model, on SmolLM2-135M-Instruct: rows teach it to apologise after each answer. Pairs
that prefer the same answer without the apology undo that, on other questions too, without a loss of knowledge.

``make long`` trains with the three seeds of the table in docs/preference.md; ``make everything``, as CI runs it, with the first alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.system.loop import Installation, mens
from tests.system.real_base import REAL, finish, real_installation

PAIRS = Path(__file__).with_name("no_apologies.jsonl")
HELD_OUT = Path(__file__).with_name("no_apologies.heldout.jsonl")
NO_APOLOGY = r"(?is)^(?!.*\b(sorry|apolog))\s*\S"
FORGET = """version: "1"
gates: {forget: {max_degradation: 0.1}}
"""
SUPERVISED = {"epochs": 2, "learning_rate": 2e-4}
PREFERENCE = {"epochs": 1, "learning_rate": 7e-5}
FORGETFUL = {"epochs": 1, "learning_rate": 1e-3}
SEEDS = (1, 2, 3)
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation that serves SmolLM2 and nothing else, with a policy for each alias that asks what was forgotten."""
    folder = tmp_path_factory.mktemp("preferences")
    with real_installation(folder / "home") as installation:
        policy = folder / "policy.yaml"
        policy.write_text(FORGET)
        aliases = ("forgetful", *map(alias_of, SEEDS))
        for command in (
            ("policies", "put", "keeps", str(policy)),
            *(("policies", "assign", f"alias:{alias}", "keeps") for alias in aliases),
        ):
            mens(*command, home=installation.stack.home, timeout=120).check_returncode()
        yield installation


def alias_of(seed: int) -> str:
    return f"direct-{seed}"


@pytest.fixture(scope="module")
def apologising(real: Installation) -> Callable[[int], str]:
    """Makes an adapter that was tuned, with a seed, on the questions with the answers that DPO rejects."""
    pairs = map(json.loads, PAIRS.read_text().splitlines())
    rows = "".join(json.dumps({"messages": pair["prompt"] + pair["rejected"]}) + "\n" for pair in pairs).encode()

    @cache
    def adapter(seed: int) -> str:
        return str(train(real, f"sorry-{seed}", rows, {}, SUPERVISED | {"seed": seed})["adapter_id"])

    return adapter


def prefer(installation: Installation, parent: str, alias: str, steps: dict[str, Any]) -> dict[str, Any]:
    """The result of a job that trains an adapter on the pairs, for an alias."""
    sections = {
        "method": {"type": "dpo"},
        "adapter": {"continue_from": parent},
        "artifact": {"alias": alias},
    }
    return train(installation, alias, PAIRS.read_bytes(), sections, steps)


def train(
    installation: Installation, name: str, rows: bytes, sections: dict[str, Any], steps: dict[str, Any]
) -> dict[str, Any]:
    """The result of a job over 16-bit weights in batches of four, once it has succeeded."""
    file = installation.upload_bytes(f"{name}.jsonl", rows)
    fixed = {"batch_size": 4, "grad_accum": 1, "warmup_steps": 1, "checkpoint_every": 100}
    contract: dict[str, Any] = {
        "model": {"name": REAL},
        "data": {"train_file": file, "validation_split_ratio": 0.0},
        "quant": {"base": "none"},
        "exec": fixed | steps,
    }
    body = {"kind": "finetune", "name": name, "contract": contract | sections}
    result: dict[str, Any] = finish(installation, str(installation.call("POST", "/v1/jobs", json=body)["id"]))["result"]
    return result


def compare(installation: Installation, model: str, against: str) -> dict[str, Any]:
    """Compare two models' answers to the questions that none was trained on: an answer without an apology is better."""
    options = ("--check", f"regex={NO_APOLOGY}", "--max-tokens", "32", "--yes", "--json")
    models = ("--model", model, "--against", against)
    done = mens("eval", "run", str(HELD_OUT), *models, *options, home=installation.stack.home, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["comparisons"]["regex"]
    assert found["items"] == len(HELD_OUT.read_text().splitlines())
    return found


def forget_gate(installation: Installation, result: dict[str, Any]) -> dict[str, Any]:
    """The one gate of a result's receipt."""
    receipt = installation.call("GET", f"/v1/receipts/{result['receipt']['id']}")["receipt"]
    (gate,) = receipt["gates"]
    assert gate["name"] == "forget"
    return gate | {"compared_with": receipt["compared_with"]}


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[pytest.mark.long, *([pytest.mark.experiment] if number else [])])
        for number, seed in enumerate(SEEDS)
    ],
)
def test_tuned_model_wins_on_other_questions_and_has_kept_what_it_knew(
    real: Installation, apologising: Callable[[int], str], seed: int
) -> None:
    parent = apologising(seed)
    result = prefer(real, parent, alias_of(seed), PREFERENCE | {"seed": seed})
    found, gate = compare(real, str(result["adapter_id"]), parent), forget_gate(real, result)
    print(f"seed {seed}: direct {found['old']:.2f} -> {found['new']:.2f}; {found['win_rate']}; {gate['message']}")
    assert found["win_rate"]["interval"][0] > 0.5, found
    assert (gate["status"], gate["compared_with"]) == ("passed", parent), gate
    assert result["alias"]["moved"], result["alias"]


@pytest.mark.experiment
def test_a_model_that_has_forgotten_does_not_take_the_alias(
    real: Installation, apologising: Callable[[int], str]
) -> None:
    """The same pairs at a learning rate that costs a model of this size what it knew."""
    parent = apologising(SEEDS[0])
    result = prefer(real, parent, "forgetful", FORGETFUL | {"seed": SEEDS[0]})
    gate = forget_gate(real, result)
    print(gate["message"])
    assert (gate["status"], gate["compared_with"]) == ("failed", parent), gate
    assert (result["alias"]["moved"], result["alias"]["error"]["code"]) == (False, "GATE_FAILED")
