"""Actions in remedies: those in the source, by error code, and those in docs/errors.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.tiers import TIERS

HELPERS = ("cli/client/remedies.py", "cli/client/start_command.py", "shared/replicas.py")
"""Modules that write remedies, or parts of them, for codes that other modules raise."""
ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `([A-Z0-9_]+)` \| .*? \| (.*?) \|", re.MULTILINE)
ACTION = re.compile(r"`(mens [^`]+|MENS_[A-Z_]+(?:=[^`]+)?|(?:GET|POST|PUT|DELETE) /[^`]+)`")
"""A command, a setting or a route."""
PLACEHOLDER = re.compile(r"\{[^}]*\}|\b(?:ID|NAME|KEY|ADAPTER|ALIAS|MODEL|BASE|FILE|TENANT|JOB)\b|[<>]")


def documented_actions() -> dict[str, list[str]]:
    """Return the actions that each code's remedy in docs/errors.md names, without their placeholders."""
    rows = ROW.findall((ROOT / "docs" / "errors.md").read_text(encoding="utf-8"))
    return {code: [_plain(action) for action in ACTION.findall(remedy)] for code, remedy in rows}


def given_strings() -> dict[str, str]:
    """Return, by code, all strings of the modules that name it, without their placeholders."""
    strings: dict[str, list[str]] = {}
    for path in _sources():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = [_plain(text) for text in _strings(tree)]
        for code in set(_codes(tree)):
            strings.setdefault(code, []).extend(found)
    return {code: "\n".join(found) for code, found in strings.items()}


def not_given() -> Iterator[str]:
    """Yield documented actions that appear neither in a module that names their code nor in a helper module."""
    given = given_strings()
    trees = (ast.parse((ROOT / path).read_text(encoding="utf-8")) for path in HELPERS)
    elsewhere = "\n".join(_plain(text) for tree in trees for text in _strings(tree))
    for code, actions in documented_actions().items():
        for action in actions:
            if action not in given.get(code, "") and action not in elsewhere:
                yield f"{code}: {action}"


def _sources() -> Iterator[Path]:
    for package in TIERS:
        yield from sorted((ROOT / package).rglob("*.py"))


def _codes(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Code":
            yield node.attr


def _strings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _plain(text: str) -> str:
    return " ".join(PLACEHOLDER.sub("{}", text).split())
