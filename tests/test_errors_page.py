"""docs/errors.md matches the error tree, and every code has a class, a section and a place to look."""

from __future__ import annotations

import os

from shared.errors import Code, MensError
from tests.support.errors_page import LOOK_AT, OPERATORS, PAGE, ROW, WHO, classes, entries, kinds_by_code, page


def test_page_is_the_generated_one() -> None:
    if os.environ.get("MENS_UPDATE_GOLDEN"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page(), "MENS_UPDATE_GOLDEN=1 pytest tests/test_errors_page.py writes it"


def test_every_code_has_a_class_that_raises_it() -> None:
    kinds = kinds_by_code()
    assert [code for code in Code if code not in kinds] == []


def test_every_class_says_who_acts() -> None:
    assert set(WHO) == set(classes().values())
    assert MensError in OPERATORS


def test_every_section_with_operators_codes_says_where_to_look() -> None:
    sections = {entry.section for entry in entries() if set(entry.kinds) & set(OPERATORS)}
    assert sections <= set(LOOK_AT)


def test_row_without_a_class_is_read_as_one_with_it() -> None:
    """So that a new code is a row of three cells, wherever it stands, until the page is written again."""
    new = "| `REQUEST_INVALID` | It does not fit. | Correct it. |"
    assert (
        ROW.findall(f"{new}\n{new} InvalidRequest |\n") == [("REQUEST_INVALID", "It does not fit.", "Correct it.")] * 2
    )
