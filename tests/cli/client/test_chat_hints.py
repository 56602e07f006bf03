"""The command to chat with a job's adapter, and the reason for an empty answer: both use the system turn of the
training.
"""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from cli.client.chat_hints import LONGEST_SYSTEM, describe_chat, describe_empty
from shared.model_card.self_evaluation import KEY, RowSource, SampleAnswer, SelfEvaluation
from tests.support.builders import new_adapter
from tests.support.cli_installation import CliInstallation

SYSTEM = "You sort tickets; the customer's city isn't guessed."


def measured(**changes: Any) -> dict[str, Any]:
    sample = SampleAnswer(
        line=3, role="user", prompt="a?", turns=2, reference="A", base="", tuned="A", base_ended=True, tuned_ended=True
    ).model_copy(update={"system": SYSTEM} | changes)
    evaluation = SelfEvaluation(
        source=RowSource.HELD_OUT,
        rows=1,
        rows_available=1,
        tokens=4,
        loss=None,
        token_accuracy=None,
        sample_answers=(sample,),
    )
    return {KEY: evaluation.model_dump(mode="json")}


def hint(result: dict[str, Any], *, publish: bool = True) -> list[str]:
    job = {"state": "succeeded", "contract": {"artifact": {"publish": publish}}, "result": result}
    return list(describe_chat(job))


def test_the_command_has_the_rows_system_turn_and_question() -> None:
    result = {"adapter_id": "demo@1", "alias": {"name": "demo", "moved": True}, **measured()}
    [line] = hint(result)
    assert shlex.split(line) == ["next:", "mens", "chat", "demo", "--system", SYSTEM, "a?"]
    assert hint(result | measured(turns=4))[0].endswith(' "…"'), "its question is one of several"


def test_a_long_system_turn_is_shortened_and_its_place_is_named() -> None:
    for system in ("Sort. " * LONGEST_SYSTEM, "Sort.\nAnswer in JSON.", "Sort\x1b[31m"):
        line, place = hint({"adapter_id": "demo@1", **measured(system=system)})
        assert line.startswith('next: mens chat demo@1 --system "Sort') and "…" in line and line.isprintable()
        assert place == "      replace this with the complete system turn, from line 3 of the training file"


def test_rows_without_a_system_turn_get_the_short_command() -> None:
    assert hint({"adapter_id": "demo@1", **measured(system=None)}) == ['next: mens chat demo@1 "…"']
    assert hint({"adapter_id": "demo@1"}) == ['next: mens chat demo@1 "…"']


def test_what_cannot_be_chatted_with_gets_no_command() -> None:
    assert hint({"adapter_id": "demo@1"}, publish=False) == []
    assert hint({"model_digest": "a" * 64}) == []
    kept = {"name": "demo", "moved": False}
    assert hint({"adapter_id": "demo@1", "alias": kept}) == ['next: mens chat demo@1 "…"']


@pytest.mark.network
def test_an_empty_answer_names_the_system_turn_of_the_training(installation: CliInstallation) -> None:
    installation.register(new_adapter("demo@1", metrics=measured()), new_adapter("bare@1"))
    installation.mens("alias", "prod", "demo@1")
    installation.mens("names", "map", "ft:gpt-4o:acme::abc", "prod")
    named = 'it was trained with a system turn; add it with --system "You sort tickets; the customer\'s city is…"'
    for name in ("demo@1", "prod", "ft:gpt-4o:acme::abc"):
        assert describe_empty(name, None, 9, "stop") == f"note: {name} returned an empty answer: {named}"
    for name, system in (("bare@1", None), ("nobody", None), ("demo@1", SYSTEM)):
        assert describe_empty(name, system, 9, "stop") == f"note: {name} returned an empty answer"
