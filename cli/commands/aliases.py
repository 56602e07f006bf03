"""``mens aliases``: where the names that people use point to, moving them, and the way back."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.connection import call, fail, find, find_all, note
from cli.names import whole_adapter_id
from cli.tables import print_table
from shared.contract import describe_bad_name
from shared.errors import Code

app = typer.Typer(
    no_args_is_help=True,
    help="Aliases: look, move, split between adapters, roll back, history.\n\n"
    "A tenant's alias hides the alias of `shared` with the same name from that tenant, until it is deleted.",
)

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
    print_table(("alias", "version", "points to", "shadow", "tenant"), map(_row, find_all("/v1/aliases")))


@app.command("show")
def show(name: Name) -> None:
    """Show one alias and its last move."""
    alias, moves = call("GET", _path(name)), find_all(f"{_path(name)}/history", limit=1)
    typer.echo(describe_alias(alias))
    typer.echo(f"tenant {_describe_tenant(alias)}")
    for move in moves:
        typer.echo(
            f"{move['verb']} by {move['actor']} at {move['moved_at'][:19]}: {move['reason'] or 'no reason given'}"
        )


@app.command("set")
def set_alias(
    name: Name,
    adapter_id: Annotated[
        str, typer.Argument(help="Id of a published adapter, or its beginning: NAME@ and some digits.")
    ],
    shadow: ShadowAdapter = None,
    shadow_share: ShadowShare = 0.1,
    reason: Reason = "",
    if_version: IfVersion = None,
) -> None:
    """Point an alias to one adapter. A tenant's hides an alias of `shared` with the same name, and says so."""
    _put(name, {"adapter": _adapter_id(adapter_id)}, shadow, shadow_share, reason, if_version)


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
    _move("POST", name, "/rollback", body, if_version)


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
        for move in find_all(f"{_path(name)}/history", limit=limit)
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


def describe_alias(alias: dict[str, Any]) -> str:
    """Where an alias points, in one line."""
    shadow = f" (shadow: {_describe_shadow(alias['shadow'])})" if alias["shadow"] else ""
    return f"{alias['name']} → {describe_targets(alias['targets'])}{shadow}, version {alias['version']}"


def describe_part(alias: dict[str, Any], adapter_id: str) -> str:
    """What an adapter has of an alias: ``prod 90 %``, ``prod (shadow 10 %)``, plain ``prod`` for all; empty for nothing."""
    weights = {target["adapter"]: target["weight"] for target in alias["targets"]}
    shadow = alias["shadow"] or {}
    if adapter_id == shadow.get("adapter"):
        return f"{alias['name']} (shadow {100 * shadow['share']:.3g} %)"
    if adapter_id not in weights:
        return ""
    whole = "" if len(weights) == 1 else f" {100 * weights[adapter_id] / sum(weights.values()):.3g} %"
    return f"{alias['name']}{whole}"


def describe_hiding(name: str, tenant: str) -> str | None:
    """Which alias will be hidden when a tenant's own of that name is moved; None when none is."""
    hidden = _describe_hidden(find(_path(name)), tenant)
    return hidden and f"{hidden} once the job succeeds; `mens aliases delete {name}` shows it again"


def _describe_hidden(seen: dict[str, Any] | None, tenant: str) -> str | None:
    """The alias that was seen by a name before it became the tenant's own, and from whom it is hidden."""
    if seen is None or seen["tenant"] == tenant:
        return None
    return f"the alias {seen['name']} of {seen['tenant']} ({describe_targets(seen['targets'])}) is hidden from {tenant}"


def _describe_shadow(shadow: dict[str, Any] | None) -> str:
    return f"{shadow['adapter']} {100 * shadow['share']:.3g} %" if shadow else ""


def _describe_tenant(alias: dict[str, Any]) -> str:
    """Whose an alias is, and whose of the same name it hides."""
    return f"{alias['tenant']} (hides {alias['hides']}'s)" if alias.get("hides") else str(alias["tenant"])


def _row(alias: dict[str, Any]) -> tuple[str, ...]:
    where = describe_targets(alias["targets"]), _describe_shadow(alias["shadow"])
    return alias["name"], str(alias["version"]), *where, _describe_tenant(alias)


def _put(
    name: str, where: dict[str, Any], shadow: str | None, share: float, reason: str, if_version: int | None
) -> None:
    shadowed = {"shadow": {"adapter": _shadow_id(shadow), "share": share}} if shadow else {}
    _move("PUT", name, "", {**where, **shadowed, "reason": reason}, if_version)


def _move(method: str, name: str, verb: str, body: dict[str, Any], if_version: int | None) -> None:
    """Move an alias, and say so when that hides another one: who asks for the name gets other answers from now on."""
    seen = find(_path(name))
    moved = call(method, _path(name) + verb, json=body, headers=_if_match(if_version))
    typer.echo(f"{describe_alias(moved)}{_describe_standstill(seen, moved, body['reason'])}")
    if hidden := _describe_hidden(seen, moved["tenant"]):
        note(f"note: {hidden} now; `mens aliases delete {name}` shows it again")


def _describe_standstill(seen: dict[str, Any] | None, moved: dict[str, Any], reason: str) -> str:
    """That an alias is where it was: the API makes no move of that, and so keeps no reason; empty when it moved."""
    if seen is None or (seen["tenant"], seen["version"]) != (moved["tenant"], moved["version"]):
        return ""
    return f": already so; nothing moved{', and the reason is not kept' if reason else ''}"


def _target(text: str) -> dict[str, Any]:
    adapter, _, weight = text.rpartition("=")
    if not adapter or not weight.isdecimal():
        fail(f"{text!r} is not ADAPTER=WEIGHT, e.g. support@1…=90.")
    return {"adapter": _adapter_id(adapter), "weight": int(weight)}


def _shadow_id(text: str) -> str:
    """The adapter that gets copies; ends the command when the share is written behind it, as a target's weight is."""
    adapter, *share = re.split("[:=]", text, maxsplit=1)
    if share:
        fail(f"{text!r} is no id of an adapter; its share is an option: --shadow {adapter} --shadow-share 0.5.")
    return _adapter_id(text)


def _adapter_id(text: str) -> str:
    """The adapter that is meant by an id or its beginning; ends the command when that is the name of something else."""
    if "@" not in text:
        alias = None if describe_bad_name(text) else find(_path(text))
        points = f" The alias {text} points to {describe_targets(alias['targets'])}." if alias else ""
        none = f"{text!r} is no id of an adapter (ids look like NAME@DIGEST); `mens models` lists them."
        fail(f"{Code.ADAPTER_NOT_FOUND}: {none}{points}")
    return whole_adapter_id(text)


def _path(name: str) -> str:
    if fault := describe_bad_name(name):  # a slash would not even reach the route
        fail(f"{Code.NAME_INVALID}: name: {fault}.")
    return f"/v1/aliases/{quote(name, safe='')}"


def _if_match(version: int | None) -> dict[str, str]:
    return {} if version is None else {"If-Match": f'"{version}"'}
