"""The rules that are installed, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

from corpus.pairs.complete import Complete
from corpus.pairs.docs_qa import DocsQa
from corpus.pairs.explain import Explain
from corpus.pairs.fix import Fix
from corpus.pairs.from_docstring import FromDocstring
from corpus.pairs.implement import Implement
from corpus.pairs.query import DescribedQuery
from corpus.pairs.rule import PairRule
from corpus.pairs.test_for import TestFor
from shared.errors import Code, InvalidRequest

GROUP = "mens.pairs"
"""Entry point group for other packages: each rule's name stands for a callable without parameters that returns the
rule.
"""
_KINDS: tuple[Callable[[], PairRule], ...] = (
    Implement, FromDocstring, Explain, TestFor, Complete, Fix, DocsQa, DescribedQuery,
)  # fmt: skip
_OWN = {rule.name: rule for rule in (kind() for kind in _KINDS)}


def installed_rules() -> list[str]:
    """Return the names of all rules: Mens's own, then those of other packages."""
    return [*_OWN, *sorted({point.name for point in entry_points(group=GROUP)} - _OWN.keys())]


def load_rules(names: Sequence[str]) -> list[PairRule]:
    """Return the rules with these names; all rules if no names are given.

    Raises:
        InvalidRequest: ``CORPUS_RULE_UNKNOWN``.
    """
    return [_load(name) for name in dict.fromkeys(names or installed_rules())]


def _load(name: str) -> PairRule:
    if name in _OWN:
        return _OWN[name]
    for point in entry_points(group=GROUP, name=name):
        rule: PairRule = point.load()()
        return rule
    message = f"No rule is called {name[:80]!r}; the installed ones are: {', '.join(installed_rules())}."
    remedy = "Correct the name, or install a package with an entry point `mens.pairs` of this name."
    raise InvalidRequest(Code.CORPUS_RULE_UNKNOWN, message, remedy=remedy, param="rules")
