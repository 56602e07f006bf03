"""``mens names``: names of another provider's models, and what each stands for here."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.client.connection import call, fail_with, find_all
from cli.client.id_prefixes import resolve_adapter_id
from cli.commands.aliases import IfVersion, Override, Reason, if_match
from cli.output import print_table
from shared.contract.values import describe_bad_foreign_name
from shared.errors import Code, InvalidRequest

app = typer.Typer(
    no_args_is_help=True,
    help="Names of another provider's models: map, list, remove, history.\n\n"
    "A program that requests `ft:gpt-4o-mini-2024-07-18:acme:support:9x1` keeps that name: map it to an alias, and "
    "change only "
    "the program's base URL and key. Responses have the requested name as `model`.",
)

Name = Annotated[
    str, typer.Argument(help="The other provider's name, e.g. ft:gpt-4o-mini-2024-07-18:acme:support:9x1.")
]


@app.command("map")
def map_name(
    name: Name,
    target: Annotated[str, typer.Argument(help="An alias or, for a checkpoint's name, an adapter's id: NAME@DIGEST.")],
    base: Annotated[
        bool,
        typer.Option("--base", help="TARGET is a base, so that jobs may be created on NAME. Needs an admin's key."),
    ] = False,
    override: Override = False,
    reason: Reason = "",
    if_version: IfVersion = None,
) -> None:
    """Map a name to an alias, whose moves it follows, to an adapter, or with --base to a base."""
    kind = "base" if base else "adapter" if "@" in target else "alias"
    body: dict[str, Any] = {kind: resolve_adapter_id(target) if kind == "adapter" else target}
    body |= {"override": True} if override else {}
    made = call("PUT", path_of(name), json=body | {"reason": reason}, headers=if_match(if_version))
    typer.echo(f"{made['name']} → {_describe(made['stands_for'])}, version {made['version']}")


@app.command("list")
def list_names() -> None:
    """Show all foreign names."""
    rows = [
        (name["name"], str(name["version"]), _describe(name["stands_for"]), name["tenant"])
        for name in find_all("/v1/names")
    ]
    print_table(("name", "version", "stands for", "tenant"), rows)


@app.command("history")
def history(name: Name, limit: Annotated[int, typer.Option(help="Number of moves to show.")] = 100) -> None:
    """Show who mapped a name, when, why and to what; newest first."""
    rows = [
        (
            str(move["version"]),
            move["moved_at"][:19],
            move["verb"],
            move["actor"],
            _describe(move["to"]) if move["to"] else "(deleted)",
            move["reason"],
        )
        for move in find_all(f"{path_of(name)}/history", limit=limit)
    ]
    print_table(("version", "when (UTC)", "verb", "who", "stands for", "why"), rows)


@app.command("remove")
def remove(name: Name, reason: Reason = "", if_version: IfVersion = None) -> None:
    """Remove a name. Its target and its history stay."""
    call("DELETE", path_of(name), params={"reason": reason}, headers=if_match(if_version))
    typer.echo(f"{name} is removed; `mens names map {name} TARGET` maps it again")


def path_of(name: str) -> str:
    """Return the API's path of a name; end the command if it cannot be a name."""
    if fault := describe_bad_foreign_name(name):
        fail_with(InvalidRequest(Code.NAME_INVALID, f"name: {fault}.", param="name"))
    return f"/v1/names/{quote(name, safe='')}"


def _describe(state: dict[str, Any]) -> str:
    """Describe a name's target; for the time when it was an alias, its adapters."""
    if "targets" in state:
        return ", ".join(target["adapter"] for target in state["targets"])
    return f"{state['kind']} {state['name']}"
