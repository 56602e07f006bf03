"""docs/architecture.md and docs/extending.md match the code: folders, files and functions exist; the README is short."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.tiers import TIERS

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
PAGES = ("architecture.md", "extending.md")
STEP = re.compile(r"`([\w/]+\.py):([\w.]+)`")
MAX_STEPS = 20


def packages() -> set[str]:
    return {str(path.parent.relative_to(ROOT)) for tier in TIERS for path in (ROOT / tier).rglob("__init__.py")}


def listed_folders() -> Iterator[str]:
    """Paths of the tree in docs/architecture.md: two spaces a level, one folder or several at the beginning of a line."""
    tree = next(
        block
        for block in re.findall(r"^```\w*\n(.*?)^```", ARCHITECTURE, re.MULTILINE | re.DOTALL)
        if block.startswith("api/")
    )
    above: list[str] = []
    for line in tree.splitlines():
        indent = len(line) - len(line.lstrip())
        names = re.match(r"(?:[\w./-]+/\s+)+", line.lstrip() + " ")
        assert names, line
        above = above[: indent // 2]
        for name in names[0].split():
            yield "/".join([*above, name.rstrip("/")])
        above.append(names[0].split()[-1].rstrip("/"))


def test_folder_list_has_every_package() -> None:
    listed = set(listed_folders())
    assert not [path for path in listed if not (ROOT / path).is_dir()]
    assert {path for path in listed if path.split("/")[0] in TIERS} == packages()


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_packages_have_two_to_seventeen_files() -> None:
    sizes = {package: len(list((ROOT / package).glob("[!_]*.py"))) for package in packages()}
    assert not {package: size for package, size in sizes.items() if not 2 <= size <= 17}


@cache
def names_in(path: str) -> frozenset[str]:
    """Functions, classes, methods (`Class.method`) and constants of a module."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{part.name}"
                for part in node.body
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES)
def test_every_named_function_exists(page: str) -> None:
    steps = STEP.findall((ROOT / "docs" / page).read_text())
    assert steps
    assert not [f"{path}:{name}" for path, name in steps if not (ROOT / path).is_file() or name not in names_in(path)]


def test_walks_are_short() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    walks = re.findall(r"^## Walk: .*?\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(walks) == 3
    assert all(0 < len(re.findall(r"^\d+\. ", walk, re.MULTILINE)) <= MAX_STEPS for walk in walks)


def test_glossary_words_are_in_order() -> None:
    words = re.findall(r"^\| \*\*([^*]+)\*\*", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert words == sorted(words)
    assert len(words) >= 30
