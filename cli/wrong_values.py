"""Wrong values of options in the words of a command line: Typer shows pydantic's, which leave out the value that was typed."""

from __future__ import annotations

from typing import Any

REASONS = {
    "int_parsing": "{input!r} is not a whole number",
    "int_from_float": "{input!r} is not a whole number",
    "float_parsing": "{input!r} is not a number",
    "finite_number": "{input!r} is not a finite number",
    "bool_parsing": "{input!r} is neither true nor false",
    "greater_than_equal": "{input!r} is less than {ge}",
    "greater_than": "{input!r} is not more than {gt}",
    "less_than_equal": "{input!r} is more than {le}",
    "less_than": "{input!r} is not less than {lt}",
}
"""Reasons by pydantic's type of a fault."""


def reword(error: Any) -> None:
    """Give a usage error of Typer a message that names the value, if the error is about a value."""
    faults = getattr(error.__cause__, "errors", None)
    if not faults:
        return
    fault = faults()[0]
    if template := REASONS.get(fault["type"]):
        error.message = template.format(input=fault["input"], **fault.get("ctx", {})) + "."
    else:
        error.message = str(error.message).removeprefix("Value error, ")
