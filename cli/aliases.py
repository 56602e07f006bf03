"""``mens aliases``: where the names that people use point to, moving them, and the way back."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.connection import call, fail
from cli.tables import print_table

app = typer.Typer(no_args_is_help=True, help="Aliases: look, move, split between adapters, roll back, history.")

Name = Annotated[str, typer.Argument(help="The alias.")]
Reason = Annotated[str, typer.Option(help="Why; it is kept in the history.")]
IfVersion = Annotated[int | None, typer.Option(help="Move only from this version, so that nobody's move is undone.")]
ShadowAdapter = Annotated[
    str | None, typer.Option(help="Adapter that gets copies of requests; nobody sees its answers.")
]
ShadowShare = Annotated[float, typer.Option(help="Part of the requests that is copied.")]


@app.command("list")
def list_aliases() -> None:
    """Show all aliases."""
    rows = [
        (alias["name"], str(alias["version"]), describe_targets(alias["targets"]), _describe_shadow(alias["shadow"]))
        for alias in call("GET", "/v1/aliases")
    ]
    print_table(("alias", "version", "points to", "shadow"), rows)


@app.command("show")
def show(name: Name) -> None:
    """Show one alias and its last move."""
    alias, moves = call("GET", _path(name)), call("GET", f"{_path(name)}/history", params={"limit": 1})
    _print(alias)
    for move in moves:
        typer.echo(
            f"{move['verb']} by {move['actor']} at {move['moved_at'][:19]}: {move['reason'] or 'no reason given'}"
        )


@app.command("set")
def set_alias(
    name: Name,
    adapter_id: Annotated[str, typer.Argument(help="Id of a published adapter.")],
    shadow: ShadowAdapter = None,
    shadow_share: ShadowShare = 0.1,
    reason: Reason = "",
    if_version: IfVersion = None,
) -> None:
    """Point an alias to one adapter."""
    _put(name, {"adapter": adapter_id}, shadow, shadow_share, reason, if_version)


@app.command("split")
def split(
    name: Name,
    targets: Annotated[list[str], typer.Argument(help="ADAPTER=WEIGHT, e.g. support@1…=90 support@2…=10.")],
    shadow: ShadowAdapter = None,
    shadow_share: ShadowShare = 0.1,
    reason: Reason = "",
    if_version: IfVersion = None,
) -> None:
    """Split an alias between adapters by weight; who asks again gets the same one."""
    _put(name, {"targets": [_target(text) for text in targets]}, shadow, shadow_share, reason, if_version)


@app.command("rollback")
def rollback(
    name: Name,
    to_version: Annotated[
        int | None, typer.Option(help="As it was at this version; else before its last move.")
    ] = None,
    reason: Reason = "",
    if_version: IfVersion = None,
) -> None:
    """Move an alias back. A deleted one returns."""
    body = {"to_version": to_version, "reason": reason}
    _print(call("POST", f"{_path(name)}/rollback", json=body, headers=_if_match(if_version)))


@app.command("history")
def history(name: Name, limit: Annotated[int, typer.Option(help="At most this many moves.")] = 100) -> None:
    """Show who moved an alias, when, why and where to; newest first."""
    rows = [
        (
            str(move["version"]),
            move["moved_at"][:19],
            move["verb"],
            move["actor"],
            describe_targets(move["to"]["targets"]) if move["to"] else "(deleted)",
            _describe_shadow(move["to"] and move["to"]["shadow"]),
            move["reason"],
        )
        for move in call("GET", f"{_path(name)}/history", params={"limit": limit})
    ]
    print_table(("version", "when (UTC)", "verb", "who", "points to", "shadow", "why"), rows)


@app.command("delete")
def delete(name: Name, reason: Reason = "", if_version: IfVersion = None) -> None:
    """Delete an alias; its adapters and its history stay."""
    call("DELETE", _path(name), params={"reason": reason}, headers=_if_match(if_version))
    typer.echo(f"{name} is deleted; `mens aliases rollback {name}` brings it back")


def describe_targets(targets: list[dict[str, Any]]) -> str:
    """One adapter's id, or each with its share: ``a@1 90 %, a@2 10 %``."""
    total = sum(target["weight"] for target in targets)
    if len(targets) == 1:
        return str(targets[0]["adapter"])
    return ", ".join(f"{target['adapter']} {100 * target['weight'] / total:.3g} %" for target in targets)


def _describe_shadow(shadow: dict[str, Any] | None) -> str:
    return f"{shadow['adapter']} {100 * shadow['share']:.3g} %" if shadow else ""


def _print(alias: dict[str, Any]) -> None:
    shadow = f" (shadow: {_describe_shadow(alias['shadow'])})" if alias["shadow"] else ""
    typer.echo(f"{alias['name']} → {describe_targets(alias['targets'])}{shadow}, version {alias['version']}")


def _put(
    name: str, where: dict[str, Any], shadow: str | None, share: float, reason: str, if_version: int | None
) -> None:
    shadowed = {"shadow": {"adapter": shadow, "share": share}} if shadow else {}
    body = {**where, **shadowed, "reason": reason}
    _print(call("PUT", _path(name), json=body, headers=_if_match(if_version)))


def _target(text: str) -> dict[str, Any]:
    adapter, _, weight = text.rpartition("=")
    if not adapter or not weight.isdecimal():
        fail(f"{text!r} is not ADAPTER=WEIGHT, e.g. support@1…=90.")
    return {"adapter": adapter, "weight": int(weight)}


def _path(name: str) -> str:
    return f"/v1/aliases/{quote(name, safe='')}"


def _if_match(version: int | None) -> dict[str, str]:
    return {} if version is None else {"If-Match": f'"{version}"'}
