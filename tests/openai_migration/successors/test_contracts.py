"""Contracts of successors: each of OpenAI's hyperparameters is kept, changed or dropped, and the plan says which and
why.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.conversion.outcomes import ConvertedMethod
from openai_migration.successors.contracts import ConvertedModel, Source, successor_name, successor_sections
from shared.contract.flat_keys import parse_contract
from shared.contract.values import describe_bad_name
from tests.support.fake_openai import NAMELESS, TUNED, job

AUTO = {"n_epochs": 10, "batch_size": 4}


def planned(
    rows: int = 64, validation: Path | None = None, kind: ConvertedMethod = ConvertedMethod.SUPERVISED, **job_: Any
) -> tuple[dict[str, Any], dict[str, Source]]:
    """Sections, and sources by field, of a successor of a job."""
    model = ConvertedModel("P", TUNED, job("ftjob-1", TUNED, **job_), Path("train.jsonl"), rows, validation, kind)
    sections, sources = successor_sections(model, "tiny", 1e-3)
    parse_contract(sections | {"data": sections["data"] | {"train_file": "file-1"}})
    return sections, {source.field: source for source in sources}


def method(kind: str = "supervised", **hyperparameters: Any) -> dict[str, Any]:
    return {"type": kind, kind: {"hyperparameters": hyperparameters}}


def test_resolved_numbers_are_taken() -> None:
    sections, sources = planned(method=method(n_epochs=3, batch_size=2, learning_rate_multiplier=1.8), seed=7)
    assert sections == {
        "model": {"hf_repo": "tiny"},
        "exec": {"grad_accum": 1, "epochs": 3, "batch_size": 2, "learning_rate": 1e-3, "seed": 7},
        "data": {"validation_split_ratio": 0.0},
        "artifact": {},
    }
    assert (sources["exec.learning_rate"].openai, "is not used" in sources["exec.learning_rate"].reason) == (1.8, True)


@pytest.mark.parametrize("given", [{"n_epochs": "auto", "batch_size": "auto"}, {}])
def test_auto_becomes_mens_own_rule(given: dict[str, Any]) -> None:
    sections, sources = planned(method=method(**given))
    assert {name: sections["exec"][name] for name in ("epochs", "batch_size")} == {"epochs": 10, "batch_size": 4}
    assert "does not report the number" in sources["exec.epochs"].reason


def test_job_of_2023_has_its_hyperparameters_at_the_top() -> None:
    sections, _ = planned(method=None, hyperparameters={"n_epochs": 4}, seed=None)
    assert sections["exec"]["epochs"] == 4
    assert "seed" not in sections["exec"]


def test_a_job_on_preferences_keeps_its_method_and_beta() -> None:
    sections, sources = planned(kind=ConvertedMethod.DPO, method=method("dpo", n_epochs=2, beta=0.3))
    assert (sections["method"], sections["preference"]) == ({"type": "dpo"}, {"beta": 0.3})
    assert sections["exec"]["learning_rate"] == pytest.approx(1e-4)
    assert "beta" not in sources
    open_, _ = planned(kind=ConvertedMethod.DPO, method=method("dpo", beta="auto"))
    assert open_["preference"] == {}


def test_preferences_that_became_answers_are_learnt_as_such() -> None:
    sections, sources = planned(method=method("dpo", beta=0.3))
    assert "method" not in sections
    assert sources["beta"].value is None


def test_more_than_ten_epochs_are_ten_with_a_note() -> None:
    sections, sources = planned(method=method(n_epochs=25))
    assert (sections["exec"]["epochs"], sources["exec.epochs"].openai) == (10, 25)
    assert "limited to 10" in sources["exec.epochs"].reason


def test_what_has_no_place_is_named() -> None:
    _, sources = planned(method=method(n_epochs=1, beta=0.2), integrations=[{"type": "wandb", "wandb": {}}])
    assert (sources["beta"].value, sources["beta"].openai) == (None, 0.2)
    assert (sources["integrations"].openai, "MENS_TRACKERS" in sources["integrations"].reason) == (["wandb"], True)


def test_the_parent_of_a_chain_is_named() -> None:
    child = job("ftjob-1", TUNED) | {"model": NAMELESS}
    sections, sources = successor_sections(ConvertedModel("P", TUNED, child, Path("t.jsonl"), 9, None), "tiny", 1e-3)
    (named,) = [source for source in sources if source.field == "model"]
    assert (named.openai, named.value) == (NAMELESS, None)
    assert "adapter.continue_from" in named.reason
    assert sections["model"] == {"hf_repo": "tiny"}
    assert "model" not in planned()[1]


def test_every_row_is_trained_on() -> None:
    assert planned()[0]["data"] == {"validation_split_ratio": 0.0}
    _, sources = planned(validation=Path("valid.jsonl"), validation_file="file-valid")
    assert sources["data.validation_split_ratio"].reason == "separate file"


@pytest.mark.parametrize(
    ("model", "name"),
    [(TUNED, "support"), (NAMELESS, "bcdefg12"), ("ft:gpt-4o:acme:Süß Möbel:1", "s-m-bel"), ("-:-", "successor")],
)
def test_name_is_the_suffix_or_the_id(model: str, name: str) -> None:
    assert successor_name(model) == name


@given(st.text(max_size=300))
def test_every_name_is_valid(text: str) -> None:
    assert describe_bad_name(successor_name(f"ft:gpt-4o:acme:{text}:1")) is None
    assert describe_bad_name(successor_name(text)) is None
