"""The demo's lessons: a base model, training rows, and held-out items with a rule that judges an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
REAL_BASE, TINY_BASE = "smollm2-135m", "mens-tiny"


@dataclass(frozen=True, slots=True)
class Item:
    """A held-out prompt and the answer that its row expects.

    Attributes:
        messages: the prompt in the form of a chat request.
        reference: the expected answer, or for the tiny base a part of it.
    """

    messages: list[dict[str, str]]
    reference: str

    @property
    def question(self) -> str:
        """The user's message."""
        return self.messages[-1]["content"]


@dataclass(frozen=True, slots=True)
class Lesson:
    """One task for one base model.

    Attributes:
        base: name in the catalogue.
        alias: alias that the job moves to its adapter.
        train, validation: files of `examples/`; no validation file: rows of the training file are held out.
        contract: sections of the contract that differ from the automatic choice.
        items: prompts that neither file has.
        checks: checks that are counted, by description; a correct answer passes the last one.
        required: share of the items that the tuned model must answer correctly.
        shown: items whose answers are printed.
    """

    base: str
    alias: str
    train: str
    validation: str | None
    contract: Mapping[str, Any]
    items: tuple[Item, ...]
    checks: Mapping[str, Callable[[str, str], bool]] = field(repr=False)
    required: float = 1.0
    shown: int = 3

    @property
    def is_right(self) -> Callable[[str, str], bool]:
        """The check that a correct answer passes, called with answer and reference."""
        return list(self.checks.values())[-1]


def tickets() -> Lesson:
    """Messages of an on-call channel become tickets: JSON with four fields. Training rows do not contain the sentences
    of the items.
    """
    return Lesson(
        base=REAL_BASE,
        alias="tickets",
        train="tickets.jsonl",
        validation=None,
        contract={"exec": {"epochs": 1, "batch_size": 4, "grad_accum": 1, "learning_rate": 6e-4}},
        items=tuple(_held_out("tickets.heldout.jsonl")),
        checks={
            "answers that are JSON with these four fields": has_the_fields,
            "answers with all four values right": has_the_values,
        },
        required=0.6,
    )


def support() -> Lesson:
    """Questions about Mens, for the tiny base that is pretrained on this machine."""
    questions = json.loads((EXAMPLES / "questions.json").read_text())
    items = [Item([{"role": "user", "content": row["question"]}], row["expect"]) for row in questions]
    return Lesson(
        base=TINY_BASE,
        alias="support",
        train="support.jsonl",
        validation="support.validation.jsonl",
        contract={"exec": {"checkpoint_every": 70}},
        items=tuple(items),
        checks={"answers that are right": lambda answer, reference: reference in answer},
    )


def has_the_fields(answer: str, reference: str) -> bool:
    """Return whether an answer is a JSON object with exactly the reference's keys."""
    ticket = _object(answer)
    return ticket is not None and ticket.keys() == json.loads(reference).keys()


def has_the_values(answer: str, reference: str) -> bool:
    """Return whether an answer is the same JSON object as the reference."""
    return bool(_object(answer) == json.loads(reference))


def _object(answer: str) -> dict[str, Any] | None:
    """Return the JSON object in a string; None if it is not an object."""
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _held_out(name: str) -> list[Item]:
    """Return the rows of an example file, with their last turn as the reference."""
    rows = [json.loads(line) for line in (EXAMPLES / name).read_text().splitlines()]
    return [Item(row["messages"][:-1], row["messages"][-1]["content"]) for row in rows]
