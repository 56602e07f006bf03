"""Options and arguments that several commands have in common."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from shared.contract.choices import AdapterMethod
from shared.errors import Code, ContractRejected

TemplateArgument = Annotated[
    list[str] | None,
    typer.Option(
        "--template-argument",
        metavar="NAME=VALUE",
        help="Argument of the base's chat template, e.g. enable_thinking=false or reasoning_effort=low; may be repeated.",
    ),
]

ContinueFrom = Annotated[
    str | None,
    typer.Option(
        "--continue",
        metavar="ADAPTER",
        help="Adapter to start from: its id or the beginning of it, an alias, or a name of another provider. It determines the base and the minimum rank.",
    ),
]

MethodOption = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="METHOD",
        help="supervised: rows are answers to learn. dpo: rows are pairs of a preferred and a rejected answer. kto: rows are "
        "answers that are each rated good or bad. (lora and qlora are adapter.method.) Default: supervised.",
    ),
]


def method_sections(method: str | None) -> dict[str, dict[str, str | None]]:
    """Return the contract's section that ``--method`` fills in: the training method's, or the adapter's."""
    of_adapter = method in list(AdapterMethod)
    return {"adapter": {"method": method}} if of_adapter else {"method": {"type": method}}


def parse_template_arguments(options: Sequence[str] | None) -> dict[str, Any] | None:
    """Parse the arguments of ``--template-argument``: true, false and whole numbers as such, anything else as a string.

    Raises:
        ContractRejected: ``CONTRACT_INVALID``: an argument is not NAME=VALUE.
    """
    arguments: dict[str, Any] = {}
    for text in options or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise ContractRejected(
                Code.CONTRACT_INVALID,
                f"--template-argument {text!r} is not NAME=VALUE.",
                remedy="Write NAME=VALUE, e.g. --template-argument enable_thinking=false.",
                param="data.template_arguments",
            )
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        arguments[name.replace("-", "_")] = parsed if isinstance(parsed, bool | int) else value
    return arguments or None


def existing_file(description: str) -> Any:
    """Return an option for a file, which must exist."""
    return typer.Option(exists=True, dir_okay=False, help=description)
