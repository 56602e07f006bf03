"""Every invalid value is reported together with the text that was typed."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import typer
from pydantic import TypeAdapter, ValidationError

from cli.wrong_values import reword


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (int, "abc", "'abc' is not a whole number."),
        (int, 2.5, "2.5 is not a whole number."),
        (float, "high", "'high' is not a number."),
        (bool, "maybe", "'maybe' is neither true nor false."),
        (Annotated[int, typer.Option()], "1e9", "'1e9' is not a whole number."),
        (list[str], "a", "Input should be a valid list"),
    ],
)
def test_value_is_named(kind: Any, value: object, reason: str) -> None:
    with pytest.raises(ValidationError) as found:
        TypeAdapter(kind).validate_python(value)
    error = typer.BadParameter(str(found.value.errors()[0]["msg"]))
    error.__cause__ = found.value
    reword(error)
    assert error.message == reason


def test_other_usage_errors_are_unchanged() -> None:
    error = typer.BadParameter("Name a row.")
    reword(error)
    assert error.message == "Name a row."
