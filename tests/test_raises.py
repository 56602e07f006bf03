"""Docstrings: the section ``Raises`` names errors that the function raises itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.raised_errors import unraised
from tests.support.tiers import TIERS

ROOT = Path(__file__).resolve().parents[1]
MALFORMED = re.compile(
    r'"""(?:Args|Raises|Returns):\n.*|^(?P<indent> +)Raises:\n(?:(?P=indent) {4}.+\n)*?(?P=indent) {8}[A-Z]\w+: .*',
    re.MULTILINE,
)
"""Sections without a summary before them, and entries that are indented as a continuation of the previous entry."""


def test_documented_errors_are_raised_by_the_function_itself() -> None:
    sources = {path: path.read_text() for tier in (*TIERS, "bench", "scripts") for path in (ROOT / tier).rglob("*.py")}
    faults = {
        str(path.relative_to(ROOT)): entries
        for path, text in sources.items()
        if "Raises:" in text and (entries := unraised(text))
    }
    assert not faults, "name only errors that the function, or a helper in its module, raises"


def test_sections_follow_a_summary_and_entries_are_aligned() -> None:
    faults = {
        str(path.relative_to(ROOT)): MALFORMED.findall(path.read_text())
        for tier in (*TIERS, "bench", "scripts")
        for path in (ROOT / tier).rglob("*.py")
    }
    assert not {path: sections for path, sections in faults.items() if sections}, "the other tests do not read these"


@pytest.mark.parametrize(
    ("docstring", "is_malformed"),
    [
        ("Read.\n\n    Raises:\n        OSError: no file.\n        ValueError: no number.\n", False),
        ("Read.\n\n    Raises:\n        OSError: the file\n            does not exist.\n", False),
        ("Raises:\n    OSError: no file.\n", True),
        ("Read.\n\n    Raises:\n        OSError: no file.\n            ValueError: no number.\n", True),
    ],
)
def test_malformed_sections_are_found(docstring: str, is_malformed: bool) -> None:
    assert bool(MALFORMED.search(f'def read():\n    """{docstring}    """\n')) is is_malformed


DOCUMENTED = '''
from shared.errors import Code, InvalidRequest, NotFound
from shared.host import disk_errors

def read(path):
    """Read a file.

    Raises:
        {entry}
    """
    with disk_errors():
        return check(path)

def check(path):
    """Check a path."""
    if not path:
        raise NotFound(Code.FILE_NOT_FOUND, "no path")
    return other.load(path)
'''


@pytest.mark.parametrize(
    ("entry", "is_fault"),
    [
        ("NotFound: ``FILE_NOT_FOUND``: the file does not exist.", False),
        ("NotFound: the file does not exist.", False),
        ("MensError: the first of these.", False),
        ("Unavailable: ``STORAGE_FULL``: by the context manager.", False),
        ("NotFound: ``MODEL_NOT_FOUND``.", True),
        ("NotFound: ``FILE_NOT_FOUND``, ``MODEL_NOT_FOUND``.", True),
        ("InvalidRequest: the path is invalid.", True),
        ("ValueError: :func:`other.load` refuses it.", True),
    ],
)
def test_error_that_only_another_module_raises_is_found(entry: str, is_fault: bool) -> None:
    assert bool(unraised(DOCUMENTED.format(entry=entry))) is is_fault


def test_method_without_a_body_may_name_what_its_implementations_raise() -> None:
    source = 'class Store:\n    def read(self):\n        """Read.\n\n        Raises:\n            OSError: no.\n        """\n'
    assert not unraised(source)
    assert unraised(source + "        return self.bytes\n")
