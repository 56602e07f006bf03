"""Interface of a rule, which turns a unit into drafts of rows; the stage checks them before it writes them. Start
reading here.

Rules are looked up by name: those of this package (`rules.py`), and those that installed packages offer as entry points
of the group ``mens.pairs``.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, Protocol

from corpus.units.records import UnitRow
from shared.checkers.checker import Check
from shared.checkers.unit import UnitKind
from shared.graders.templates import render

MIN_FORMS = 8
"""Minimum number of wordings of a rule, so that a model does not memorise one phrase."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A row that has not been checked yet.

    Attributes:
        row: training row without ``id``.
        proof: code that must pass the checker of ``language``; empty for prose.
        checks: findings of the rule, for the provenance.
    """

    row: Mapping[str, Any]
    language: str = ""
    proof: str = ""
    checks: Mapping[str, Any] = field(default_factory=dict)


class CodeCheckers(Protocol):
    """Checkers of languages, each in a process with limits."""

    def check(self, language: str, text: str) -> Check:
        """See :meth:`shared.checkers.contained.ContainedCheckers.check`."""
        ...


class Neighbours(Protocol):
    """Other units of the same corpus."""

    def function(self, name: str) -> UnitRow | None:
        """Return the function with a name; None if there is not exactly one."""
        ...

    def is_tested(self, name: str) -> bool:
        """Return whether a test calls the function with a name, if there is exactly one."""
        ...


@dataclass(frozen=True, slots=True)
class RuleContext:
    """Context that a rule may use in addition to its unit."""

    checkers: CodeCheckers
    neighbours: Neighbours


class PairRule(Protocol):
    """Makes rows from units. Equal units give equal rows.

    Attributes:
        name: the rule's name, and its key in `data/wording.json` if it takes its prompts from there.
        version: increased when the same unit would give a different row.
        needs: kinds of units that it reads.
    """

    name: str
    version: int
    needs: ClassVar[frozenset[UnitKind]]

    def pairs(self, unit: UnitRow, context: RuleContext, /) -> Iterator[Draft]:
        """Yield the drafts of a unit."""
        ...


@cache
def wording() -> dict[str, list[str]]:
    """Return the wordings of each rule's prompt: templates with ``{{ item.name }}``."""
    text = files("corpus.pairs").joinpath("data/wording.json").read_text(encoding="utf-8")
    forms: dict[str, list[str]] = json.loads(text)
    return forms


def prompt_of(rule: str, unit: UnitRow, **item: str) -> str:
    """Return a prompt in the wording that the unit's id selects."""
    forms = wording()[rule]
    return render(forms[seed_of(unit) % len(forms)], item, {}).strip()


def seed_of(unit: UnitRow) -> int:
    """Return a number that depends only on the unit."""
    return int(unit.id, 16)


def fenced(code: str, language: str) -> str:
    """Return a fenced block; the fence is longer than any in the code."""
    fence = "```"
    while fence in code:
        fence += "`"
    return f"{fence}{language}\n{code}\n{fence}"


def definitions_for(unit: UnitRow) -> str:
    """Return the definitions of its module that a unit uses, as the end of a prompt; empty if it uses none."""
    paragraphs = []
    if unit.context:
        paragraphs.append("Imports:\n" + fenced(unit.context, unit.language))
    if unit.uses:
        paragraphs.append("Also defined in the module: " + ", ".join(f"`{name}`" for name in unit.uses) + ".")
    return "\n\n".join(paragraphs)


def proof_of(unit: UnitRow, code: str) -> str:
    """Return code together with the imports that it uses and placeholders for the names that it uses from its module."""
    names = "".join(f"{name} = None\n" for name in unit.uses)
    return "\n".join(filter(None, [unit.context, names + code]))


def halves(unit: UnitRow) -> tuple[str, str] | None:
    """Return the signature with docstring, and the body without indentation; None if the body has no lines of its own.

    A body that contains a string with less indented lines is not split either.
    """
    lines = unit.code.split("\n")
    head, body = "\n".join(lines[: unit.head_lines]), "\n".join(lines[unit.head_lines :])
    dedented = textwrap.dedent(body)
    if not unit.head_lines or not body.strip() or dedented.startswith((" ", "\t")):
        return None
    return head, dedented


def labels(
    category: str, family: str, rating: int, unit: UnitRow, *, lane: str = "codegen", mode: str = "code_only"
) -> dict[str, Any]:
    """Return the labels of a row written by people."""
    return {
        "category": category,
        "lane": lane,
        "task_family": family,
        "difficulty": unit.difficulty,
        "rating": rating,
        "response_mode": mode,
        "origin": "human",
    }
