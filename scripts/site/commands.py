"""The reference page of the command line: every command with its arguments and options, as `--help` has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cli.lazy_commands import load
from cli.main import PLACES
from scripts.site.markdown import NONE, code, prose, table

HEAD = """# Commands

This page is generated from the commands themselves; `mens COMMAND --help` shows the same in a terminal.
"""


def page() -> str:
    """Return the text of the page."""
    sections = [
        section for place in PLACES if not place.hidden for section in _sections(f"mens {place.name}", load(place))
    ]
    return "\n".join([HEAD, *sections])


def _sections(name: str, command: Any) -> Iterator[str]:
    """Yield the section of a command, and those of its subcommands."""
    subcommands = getattr(command, "commands", {})
    depth = min(name.count(" ") + 1, 4)
    blocks = [f"{'#' * depth} {name}\n", prose((command.help or "").strip())]
    if not subcommands:
        context = command.make_context(name, [], resilient_parsing=True)
        blocks.append(f"\n```\n{' '.join([name, *command.collect_usage_pieces(context)])}\n```")
    blocks += ["", table(("argument, option", "default", "what it is"), _rows(command))]
    yield "\n".join(blocks) + "\n"
    for subcommand in subcommands.values():
        if not subcommand.hidden:
            yield from _sections(f"{name} {subcommand.name}", subcommand)


def _rows(command: Any) -> Iterator[tuple[str, str, str]]:
    for param in command.params:
        if not getattr(param, "hidden", False):
            yield code(_name(param)), _default(param), prose(getattr(param, "help", None) or "")


def _name(param: Any) -> str:
    """Return an argument's name, or an option's spellings, e.g. ``--watch / --no-watch``."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name).upper()
    on = ", ".join(param.opts)
    return f"{on} / {', '.join(param.secondary_opts)}" if param.secondary_opts else on


def _default(param: Any) -> str:
    if param.required:
        return "required"
    if param.default in (None, "", (), []) or callable(param.default):
        return NONE
    if isinstance(param.default, bool):
        return code("on" if param.default else "off")
    return code(param.default)
