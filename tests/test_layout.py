"""The layout of source and tests: what tests may import, names of classes and tests, package docstrings, argument names.

Each check is a function that returns the faults in a source text, so that a test can show that it finds them.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from scripts.measure import sources as measure_all
from scripts.measure import tiers_of_shared

ROOT = Path(__file__).resolve().parents[1]
TIERS = ("api", "worker", "serving", "shared", "cli", "corpus", "openai_migration", "bench", "scripts")
TEST_FOLDERS = sorted(f"tests/{path.name}" for path in (ROOT / "tests").iterdir() if any(path.rglob("*.py")))
MAX_NAME = 79
DOCUMENTED = re.compile(r"^ *(?:Args|Attributes):$", re.MULTILINE)
Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def sources(folder: str) -> dict[str, str]:
    """Texts of a folder's files, by path from the repository's root."""
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))}


# -- checks: by text where that is enough, because parsing all files takes seconds --------------------------------------


def imports_of_tests(text: str, package: str) -> list[str]:
    """Return the modules that a file of a package imports from test files, or from another folder's conftest."""
    imports = re.findall(r"^ *(?:from (tests\.[\w.]+) import (\w+)|import (tests\.[\w.]+))", text, re.MULTILINE)
    names = [name for source, first, module in imports for name in (source, f"{source}.{first}", module)]
    return [
        name
        for name in names
        if re.match(r"tests\.(\w+\.)*(test_\w+|conftest)$", name) and name != f"{package}.conftest"
    ]


def repeated_classes(texts: dict[str, str]) -> dict[str, list[str]]:
    """Names that several classes have, with the files of these."""
    found = defaultdict(list)
    for path, text in texts.items():
        for name in re.findall(r"^ *class (\w+) *[:(\[]", text, re.MULTILINE):
            found[name].append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


LONELY = {
    "shared.checkers.child_process": "the program of a child process, which nothing imports",
    "shared.compilers.__main__": "the program of a child process, which nothing imports",
    **dict.fromkeys(
        (
            "shared.sandbox.__main__",
            "shared.sandbox.confinement",
            "shared.sandbox.fork_server",
            "shared.sandbox.grader_process",
            "shared.sandbox.item_folder",
        ),
        "a program of the sandbox's processes, which nothing imports",
    ),
    "shared.gpus.torch_program": "a program that the next module starts",
    **dict.fromkeys(
        (
            "shared.database.attempt_failures",
            "shared.database.callers.sign_ins",
            "shared.database.leases",
            "shared.database.lending.checkpoint_permissions",
            "shared.database.lending.lent_adapters",
            "shared.database.lists.changes",
            "shared.database.names.publication",
            "shared.database.overview.audit_log",
            "shared.database.overview.base_users",
            "shared.database.overview.costs",
            "shared.database.overview.job_counts",
            "shared.database.overview.tenants",
            "shared.database.overview.webhook_counts",
            "shared.database.tables.schema",
            "shared.database.usage",
            "shared.database.webhooks.endpoints",
        ),
        "all SQL is in one package, so its borders and its tenants are checked in one place",
    ),
    **dict.fromkeys(
        (
            "shared.scorecard.artifacts",
            "shared.scorecard.attempts",
            "shared.scorecard.decision",
            "shared.scorecard.run",
            "shared.scorecard.summary",
        ),
        "what a run writes and what a gate reads is one format",
    ),
    "shared.model_card.readme": "both model cards are written from one description",
    "shared.retention.shutdown_dates": "the API announces what the worker's policy deletes, by the same rules",
    "shared.retention.verification": "a command that runs in the image of any tier",
    "shared.tokenization.agreement": "a rule about the tokenizer next to it",
}
"""Modules of `shared/` that fewer than two tiers reach, and why they stay."""


def package_faults(text: str, folder: Path) -> Iterator[str]:
    """Return the faults of a package's `__init__.py`: a docstring says its purpose, the file to start with, and its
    imports.
    """
    tree = ast.parse(text)
    if len(tree.body) != 1:
        yield "it holds more than a docstring"
    first, _, rest = (ast.get_docstring(tree) or "").partition("\n\n")
    if not first.endswith("."):
        yield "its first paragraph is no sentence"
    start = re.search(r"Start with `([\w/]+(?:\.py)?)", rest)
    if not start or not (folder / start[1]).exists():
        yield "it does not say with which file to start"
    if "Imports " not in rest:
        yield "it does not say what it imports"


def long_names(text: str) -> list[str]:
    """Names of tests that are too long for one line of a report."""
    return [name for name in re.findall(r"^ *(?:async )?def (test_\w+)", text, re.MULTILINE) if len(name) > MAX_NAME]


def hasty_asserts(text: str) -> list[str]:
    """Assertions about a page as it is at that moment, when it may still load; `expect` of Playwright waits."""
    reads = (
        r"is_(?:visible|hidden|enabled|disabled|checked)|inner_text|text_content|all_text_contents|input_value|count"
    )
    return re.findall(rf"^ *(assert (?!.* (?:not in|<=) ).*\.(?:{reads})\(\).*)$", text, re.MULTILINE)


def unknown_names(text: str) -> Iterator[str]:
    """Names under `Args:` or `Attributes:` of a docstring that the function or class does not have."""
    for node in ast.walk(ast.parse(text if DOCUMENTED.search(text) else "")):
        if isinstance(node, Documented):
            named = set(_documented_names(ast.get_docstring(node) or ""))
            yield from (f"{node.name}: {name}" for name in sorted(named - _names_of(node)))


def _documented_names(docstring: str) -> Iterator[str]:
    for section in re.finditer(r"^(?:Args|Attributes):\n((?:    .*\n|\n)+)", docstring + "\n", re.MULTILINE):
        for names in re.findall(r"^    (\S[^:]*):(?=\s)", section[1], re.MULTILINE):
            yield from (name.strip("*` ") for name in re.split(r", | and ", names))


def _names_of(node: Documented) -> set[str]:
    """Parameters of a function; fields, methods, attributes and constructor's parameters of a class."""
    names = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    if isinstance(node, ast.ClassDef):
        written = [part for part in ast.walk(node) if isinstance(getattr(part, "ctx", None), ast.Store)]
        names |= {part.id for part in written if isinstance(part, ast.Name)}
        names |= {part.attr for part in written if isinstance(part, ast.Attribute)}
        names |= {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
    return names


# -- the tree passes them ---------------------------------------------------------------------------------------------


def test_nothing_imports_from_tests_but_support() -> None:
    packages = {path: path.rpartition("/")[0].replace("/", ".") for path in sources("tests")}
    faults = {path: imports_of_tests(text, packages[path]) for path, text in sources("tests").items()}
    assert not {path: found for path, found in faults.items() if found}


def test_class_names_are_unique_over_all_tiers() -> None:
    assert not repeated_classes({path: text for tier in TIERS for path, text in sources(tier).items()})


@pytest.mark.parametrize("folder", TEST_FOLDERS)
def test_class_names_are_unique_in_a_folder_of_tests(folder: str) -> None:
    assert not repeated_classes(sources(folder))


def test_modules_of_shared_are_reached_by_two_tiers_or_have_a_reason() -> None:
    reached = tiers_of_shared(measure_all())
    lonely = {name for name, tiers in reached.items() if len(tiers) < 2}
    assert not lonely - LONELY.keys(), "Move them to their tier, or write the reason into LONELY."
    assert not LONELY.keys() - lonely, "These reasons are not needed any more."


@pytest.mark.parametrize("tier", TIERS)
def test_packages_say_what_they_are(tier: str) -> None:
    packages = {path: text for path, text in sources(tier).items() if path.endswith("__init__.py")}
    faults = {path: list(package_faults(text, (ROOT / path).parent)) for path, text in packages.items()}
    assert not {path: found for path, found in faults.items() if found}


def test_tests_of_pages_wait_for_what_they_assert() -> None:
    faults = {path: hasty_asserts(text) for path, text in sources("tests/console").items()}
    assert not {path: found for path, found in faults.items() if found}


def test_test_names_fit_into_a_line() -> None:
    assert not [name for text in sources("tests").values() for name in long_names(text)]


@pytest.mark.parametrize("folder", [*TIERS, "tests"])
def test_documented_arguments_and_attributes_exist(folder: str) -> None:
    faults = {path: list(unknown_names(text)) for path, text in sources(folder).items()}
    assert not {path: found for path, found in faults.items() if found}


# -- and they find what they are for ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from tests.api.test_server import Client", ["tests.api.test_server"]),
        ("from tests.api import test_server", ["tests.api.test_server"]),
        ("    import tests.api.conftest", ["tests.api.conftest"]),
        ("from tests.worker.conftest import TORCH_PLACES", []),
        ("from tests.support.builders import BASE", []),
    ],
)
def test_import_from_a_test_is_found(line: str, found: list[str]) -> None:
    assert imports_of_tests(line, "tests.worker") == found


def test_repeated_class_is_found() -> None:
    texts = {"a.py": "class Known:", "b.py": "def build():\n    class Known(Base[int]):", "c.py": "class Other:"}
    assert repeated_classes(texts) == {"Known": ["a.py", "b.py"]}


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ('"""A thing.\n\nStart with `first.py`. Imports `shared`.\n"""', 0),
        ('"""A thing.\n\nStart with `first.py`. Imports `shared`.\n"""\nimport logging', 1),
        ('"""A thing\n\nStart with `first.py`. Imports `shared`.\n"""', 1),
        ('"""A thing.\n\nStart with `second.py`. Imports `shared`.\n"""', 1),
        ('"""A thing.\n\nStart with `first.py`.\n"""', 1),
        ('"""A thing."""', 2),
    ],
)
def test_fault_of_a_package_is_found(tmp_path: Path, text: str, faults: int) -> None:
    (tmp_path / "first.py").touch()
    assert len(list(package_faults(text, tmp_path))) == faults


def test_hasty_assert_is_found() -> None:
    hasty = "assert rows.count() == 2"
    waits = "expect(rows).to_have_count(2)"
    assert hasty_asserts(
        f"    {hasty}\n    {waits}\n    assert text.count(name) == 1\n    assert rows.count() <= 9"
    ) == [hasty]


def test_long_name_is_found() -> None:
    name = "test_" + "x" * 75
    assert long_names(f"def {name}(): ...\ndef {name[:-1]}(): ...") == [name]


def test_name_that_does_not_exist_is_found() -> None:
    text = '''
class Step:
    """A step.

    Attributes:
        loss, mass: of the step, which
            this explains: at length.
        rows: of it.
    """

    loss: float

    def __init__(self, rows):
        """Reads them.

        Args:
            lines: what was meant are the rows.
        """
'''
    assert list(unknown_names(text)) == ["Step: mass", "__init__: lines"]
