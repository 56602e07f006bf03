"""Commands whose files are imported when one of them is called: importing all of them would take a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from shared.errors import Code, Unavailable

ENTRY_POINT = "mens.commands"
"""Target of a command of another package, and the group of its entry point, which has the command's name."""


@dataclass(frozen=True, slots=True)
class CommandPlace:
    """Location of a command.

    Attributes:
        name: name on the command line.
        target: the module below ``cli.commands`` and, after a colon, its function or Typer application; or ``ENTRY_POINT``.
        summary: the first paragraph of the command's help, for lists of commands.
        hidden: whether lists leave it out.
        takes_unknown_options: whether options that it does not declare are left to the function.
    """

    name: str
    target: str
    summary: str
    hidden: bool = False
    takes_unknown_options: bool = False


@cache
def load(place: CommandPlace) -> Any:
    """Return the command itself, as Typer builds it."""
    target = _load_entry_point(place.name) if place.target == ENTRY_POINT else _import(place.target)
    holder = typer.Typer()
    if isinstance(target, typer.Typer):
        holder.add_typer(target, name=place.name, hidden=place.hidden)
    else:
        settings = dict.fromkeys(("allow_extra_args", "ignore_unknown_options"), place.takes_unknown_options)
        holder.command(place.name, context_settings=settings, hidden=place.hidden)(target)
    return get_group(holder).commands[place.name]


def _import(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(import_module(f"cli.commands.{module}"), attribute)


def _load_entry_point(name: str) -> Any:
    from importlib.metadata import distribution

    # Only entry points of Mens are read: reading the entry points of every installed package takes longer than the
    # command.
    points = distribution("mens").entry_points.select(group=ENTRY_POINT, name=name)
    if not points:
        raise Unavailable(
            Code.PROGRAM_FAILED,
            f"The package with the command {name} is not installed here.",
            remedy="Install Mens again (`make install`).",
            retryable=False,
        )
    return points[name].load()


class LazyGroup(TyperGroup):
    """A group that knows its commands only by name and summary until one is called or completed. Its help lists them
    panel by panel.

    An alias is replaced by the words that it stands for, so help, completion and errors are the same as for the
    command.
    """

    places: ClassVar[tuple[CommandPlace, ...]] = ()
    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        panel_of = {name: panel for panel, names in self.panels.items() for name in names}
        order = list(panel_of)
        for place in sorted(self.places, key=lambda place: order.index(place.name) if place.name in panel_of else -1):
            self.commands[place.name] = TyperCommand(
                place.name, help=place.summary, hidden=place.hidden, rich_help_panel=panel_of.get(place.name)
            )

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        words = [*self.aliases.get(args[0], args[:1]), *args[1:]]
        name, command, rest = super().resolve_command(ctx, words)
        return name, load(self._place(name)) if command else None, rest

    def _place(self, name: str | None) -> CommandPlace:
        return next(place for place in self.places if place.name == name)
