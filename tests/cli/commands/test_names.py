"""``mens names`` against a real API on a real socket."""

from __future__ import annotations

import json

import pytest

from shared.contract.values import describe_bad_foreign_name
from tests.support.builders import new_adapter
from tests.support.cli_installation import CliInstallation, Command

pytestmark = pytest.mark.network

MODEL = "ft:gpt-4o-mini-2024-07-18:acme:support:9xAbC1"


@pytest.fixture
def mens(installation: CliInstallation) -> Command:
    """Runs ``mens``; the installation has the adapters demo@1 and demo@2, and the alias support."""
    installation.register(new_adapter("demo@1", final=False), new_adapter("demo@2", step=9))
    installation.mens("aliases", "set", "support", "demo@2")
    return installation.mens


def test_map_list_remove_and_history(mens: Command) -> None:
    assert mens("names", "map", MODEL, "support", "--reason", "we leave") == f"{MODEL} → alias support, version 1"
    assert mens("names", "map", f"{MODEL}:ckpt-step-8", "demo@1").endswith("→ adapter demo@1, version 1")
    assert mens("names", "list").splitlines() == [
        f"{MODEL}\t1\talias support\tshared",
        f"{MODEL}:ckpt-step-8\t1\tadapter demo@1\tshared",
    ]
    assert f"{MODEL}\tforeign" in mens("models")
    assert "mens names map" in mens("names", "remove", MODEL, "--reason", "over")
    last, first = mens("names", "history", MODEL).splitlines()
    assert (last.split("\t")[2:], first.split("\t")[2:]) == (
        ["delete", "alice", "(deleted)", "over"],
        ["set", "alice", "alias support", "we leave"],
    )


def test_models_show_says_what_a_name_stands_for(mens: Command) -> None:
    mens("names", "map", MODEL, "support")
    shown = mens("models", "show", MODEL)
    assert shown.startswith(f"{MODEL}  stands for the alias support\ntenant   shared\n\nsupport  alias\n")
    assert "demo@2  adapter, published" in shown
    assert json.loads(mens("models", "show", MODEL, "--json"))["foreign"]["id"] == MODEL
    assert "demo@1  checkpoint" in mens("models", "show", f"{MODEL}:ckpt-step-7"), "the job's checkpoint at that step"


def test_refusals_name_what_is_wrong(mens: Command) -> None:
    assert "ALIAS_NOT_FOUND" in mens("names", "map", MODEL, "nobody", code=1)
    assert "MODEL_NOT_FOUND" in mens("names", "map", "gpt-4o", "huge", "--base", code=1)
    for name in ("a/b", "", "a@b"):
        refused = f"error: NAME_INVALID: name: {describe_bad_foreign_name(name)}."
        for verb in (["map", name, "support"], ["remove", name], ["history", name]):
            assert mens("names", *verb, code=1) == refused


def test_history_of_a_name_that_became_an_alias(mens: Command) -> None:
    mens("names", "map", "gpt-4o", "support")
    mens("aliases", "set", "gpt-4o", "demo@2")
    for noun in ("aliases", "names"):
        history = mens(noun, "history", "gpt-4o")
        assert "demo@2" in history
        assert "alias support" in history
