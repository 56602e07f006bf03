"""``mens aliases``: lists aliases, moves and splits them, rolls them back, and shows their history."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.client.completion import complete_alias
from cli.client.connection import call, fail, fail_with, find, find_all, note
from cli.client.id_prefixes import EVALS, resolve_adapter_id
from cli.client.json_errors import Json
from cli.client.remedies import LIST_MODELS
from cli.output import print_table
from shared.contract.values import describe_bad_name
from shared.errors import Code, InvalidRequest, NotFound

app = typer.Typer(
    no_args_is_help=True,
    help="Aliases: list, move, split between adapters, roll back, history.\n\n"
    "A tenant's alias hides the alias of `shared` with the same name from that tenant, until it is deleted.",
)

Name = Annotated[str, typer.Argument(autocompletion=complete_alias, help="The alias.")]
Reason = Annotated[str, typer.Option(help="Reason for the move, recorded in the history.")]
IfVersion = Annotated[
    int | None, typer.Option(help="Move only if the alias is at this version, so that you do not undo another move.")
]
Policy = Annotated[
    str | None,
    typer.Option(help="Policy (name or digest) that governs the alias from this move on."),
]
Override = Annotated[
    bool,
    typer.Option(
        "--override", help="Move without the receipt that the policy requires. Needs an admin's key and --reason."
    ),
]
ShadowAdapter = Annotated[
    str | None, typer.Option(help="Adapter that gets copies of requests; its answers are discarded.")
]
ShadowShare = Annotated[float, typer.Option(help="Share of the requests to copy.")]
ShadowEval = Annotated[
    str | None,
    typer.Option(
        help="An eval that compares the shadow's answers with the callers'; `mens aliases shadow` shows the results."
    ),
]


@app.command("list")
def list_aliases(as_json: Json = False) -> None:
    """Show all aliases."""
    aliases = find_all("/v1/aliases")
    if as_json:
        typer.echo(json.dumps(aliases, indent=2))
        return
    rows = [
        (
            alias["name"],
            str(alias["version"]),
            describe_targets(alias["targets"]),
            _describe_shadow(alias["shadow"]),
            _describe_tenant(alias),
        )
        for alias in aliases
    ]
    print_table(("alias", "version", "points to", "shadow", "tenant"), rows)


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
    shadow_eval: ShadowEval = None,
    policy: Policy = None,
    override: Override = False,
    reason: Reason = "",
    if_version: IfVersion = None,
) -> None:
    """Point an alias to one adapter. If that hides an alias of `shared` from the tenant, a note is printed.

    If a policy governs the alias, the adapter needs a receipt under that policy: `mens receipts create ADAPTER --alias NAME`.
    """
    where = {"adapter": require_adapter_id(adapter_id), "override": override, "policy": policy}
    _put(name, where, _shadow(shadow, shadow_share, shadow_eval), reason, if_version)


@app.command("split")
def split(
    name: Name,
    targets: Annotated[list[str], typer.Argument(help="ADAPTER=WEIGHT, e.g. support@1…=90 support@2…=10.")],
    shadow: ShadowAdapter = None,
    shadow_share: ShadowShare = 0.1,
    shadow_eval: ShadowEval = None,
    policy: Policy = None,
    override: Override = False,
    reason: Reason = "",
    if_version: IfVersion = None,
) -> None:
    """Split an alias between adapters by weight; the same caller always gets the same adapter."""
    weighted = []
    for text in targets:
        adapter, _, weight = text.rpartition("=")
        if not adapter or not weight.isdecimal():
            fail(f"{text!r} is not ADAPTER=WEIGHT, e.g. support@1…=90.")
        weighted.append({"adapter": require_adapter_id(adapter), "weight": int(weight)})
    where = {"targets": weighted, "override": override, "policy": policy}
    _put(name, where, _shadow(shadow, shadow_share, shadow_eval), reason, if_version)


@app.command("shadow")
def show_shadow(name: Name, as_json: Json = False) -> None:
    """Show how an alias's shadows with an eval compare with the answering adapter, on your tenant's own requests; newest first.

    The shadow wins an answer if only its own passes every criterion of the eval, and loses if only the other one does. The interval of the
    difference is valid however often you look at it. Once the shadow is shown to be worse, no more requests are copied.
    """
    shadows = find_all(f"{_path(name)}/shadow")
    if as_json:
        typer.echo(json.dumps(shadows, indent=2))
        return
    if not shadows:
        typer.echo(
            f"No copies of requests to {name} have been judged; start with: mens aliases set {name} ADAPTER --shadow "
            "ADAPTER --shadow-eval EVAL"
        )
        return
    rows = [
        (
            shadow["candidate_id"],
            shadow["incumbent_id"],
            f"{shadow['wins']} / {shadow['losses']} / {shadow['ties']}",
            f"{shadow['difference']:+.3f} [{shadow['interval'][0]:+.3f}, {shadow['interval'][1]:+.3f}]"
            if shadow["difference"] is not None
            else "",
            "WORSE: stopped" if shadow["verdict"] == "worse" else "undecided",
            f"{shadow['errored']} ({shadow['last_error']})" if shadow["errored"] else "0",
            shadow["eval_id"],
        )
        for shadow in shadows
    ]
    print_table(("shadow", "compared with", "won / lost / tied", "difference", "verdict", "errors", "eval"), rows)


@app.command("rollback")
def rollback(
    name: Name,
    to_version: Annotated[
        int | None, typer.Option(help="Version to go back to. Default: the one before the last move.")
    ] = None,
    reason: Reason = "",
    if_version: IfVersion = None,
) -> None:
    """Move an alias back to an earlier version. A deleted alias is restored."""
    body = {"to_version": to_version, "reason": reason}
    _move("POST", name, "/rollback", body, if_version)


@app.command("history")
def history(name: Name, limit: Annotated[int, typer.Option(help="Number of moves to show.")] = 100) -> None:
    """Show who moved an alias, when, why and where to; newest first."""
    moves = find_all(f"{_path(name)}/history", limit=limit)
    # Shown only if a policy has ever required one.
    evidence = any(move.get("gate") for move in moves)
    rows = [
        (
            str(move["version"]),
            move["moved_at"][:19],
            move["verb"],
            move["actor"],
            describe_state(move["to"]),
            _describe_shadow(move["to"] and move["to"].get("shadow")),
            move["reason"],
            *([_describe_gate(move["gate"])] if evidence else []),
        )
        for move in moves
    ]
    columns = ("version", "when (UTC)", "verb", "who", "points to", "shadow", "why")
    print_table((*columns, "evidence") if evidence else columns, rows)


@app.command("delete")
def delete(name: Name, override: Override = False, reason: Reason = "", if_version: IfVersion = None) -> None:
    """Delete an alias; its adapters and its history stay."""
    query = {"reason": reason} | ({"override": True} if override else {})
    call("DELETE", _path(name), params=query, headers=if_match(if_version))
    typer.echo(f"{name} is deleted; `mens aliases rollback {name}` restores it")


def describe_targets(targets: list[dict[str, Any]]) -> str:
    """Return the id of the only target, or each with its share: ``a@1 90 %, a@2 10 %``."""
    total = sum(target["weight"] for target in targets)
    if len(targets) == 1:
        return str(targets[0]["adapter"])
    return ", ".join(f"{target['adapter']} {100 * target['weight'] / total:.3g} %" for target in targets)


def describe_state(state: dict[str, Any] | None) -> str:
    """Describe a name's target before or after a move: adapters, or what it stood for while it was a foreign name."""
    if state is None:
        return "(deleted)"
    return describe_targets(state["targets"]) if "targets" in state else f"{state['kind']} {state['name']}"


def describe_alias(alias: dict[str, Any]) -> str:
    """Describe an alias's targets in one line."""
    shadow = f" (shadow: {_describe_shadow(alias['shadow'])})" if alias["shadow"] else ""
    return f"{alias['name']} → {describe_targets(alias['targets'])}{shadow}, version {alias['version']}"


def describe_share(alias: dict[str, Any], adapter_id: str) -> str:
    """Describe an adapter's share of an alias: ``prod 90 %``, ``prod (shadow 10 %)``, plain ``prod`` for all of it;
    empty for none.
    """
    weights = {target["adapter"]: target["weight"] for target in alias["targets"]}
    shadow = alias["shadow"] or {}
    if adapter_id == shadow.get("adapter"):
        return f"{alias['name']} (shadow {100 * shadow['share']:.3g} %)"
    if adapter_id not in weights:
        return ""
    share = "" if len(weights) == 1 else f" {100 * weights[adapter_id] / sum(weights.values()):.3g} %"
    return f"{alias['name']}{share}"


def describe_hiding(name: str, tenant: str) -> str | None:
    """Return the alias that will be hidden when a job moves a tenant's own alias of that name; None if none will be."""
    hidden = _describe_hidden(find(_path(name)), tenant)
    return hidden and f"once the job succeeds, {hidden}; `mens aliases delete {name}` shows it again"


def _describe_hidden(before: dict[str, Any] | None, tenant: str) -> str | None:
    """Describe the alias that a name resolved to before it became the tenant's own, and the tenant that it is hidden
    from.
    """
    if before is None or before["tenant"] == tenant:
        return None
    targets = describe_targets(before["targets"])
    return f"the alias {before['name']} of {before['tenant']} ({targets}) is hidden from {tenant}"


def _describe_shadow(shadow: dict[str, Any] | None) -> str:
    judged = f", judged by {shadow['eval']}" if shadow and shadow.get("eval") else ""
    return f"{shadow['adapter']} {100 * shadow['share']:.3g} %{judged}" if shadow else ""


def _describe_gate(gate: dict[str, Any] | None) -> str:
    """Describe the basis of a move: receipts, or an admin's override of a policy; empty if a policy did not apply."""
    if gate is None:
        return ""
    return f"OVERRIDE of {gate['policy']['name']}" if gate["override"] else ", ".join(gate["receipts"])


def _describe_tenant(alias: dict[str, Any]) -> str:
    """Describe the tenant of an alias, and the tenant whose alias of the same name it hides."""
    return f"{alias['tenant']} (hides {alias['hides']}'s)" if alias.get("hides") else str(alias["tenant"])


def _put(name: str, where: dict[str, Any], shadow: dict[str, Any] | None, reason: str, if_version: int | None) -> None:
    # An API of the previous release knows neither policies nor overrides.
    body = {key: value for key, value in where.items() if value} | {"reason": reason}
    if shadow:
        body["shadow"] = shadow
    _move("PUT", name, "", body, if_version)


def _shadow(shadow: str | None, share: float, judged_by: str | None) -> dict[str, Any] | None:
    """Return the shadow that the options request; None without one."""
    if not shadow:
        if judged_by:
            fail("--shadow-eval needs --shadow ADAPTER.")
        return None
    # A target's share is written after its id, so users may try this form for a shadow too.
    adapter, *weight = re.split("[:=]", shadow, maxsplit=1)
    if weight:
        fail(f"{shadow!r} is not an adapter's id; its share is an option: --shadow {adapter} --shadow-share 0.5.")
    request = {"adapter": require_adapter_id(shadow), "share": share}
    return request | {"eval": EVALS.resolve(judged_by)} if judged_by else request


def _move(method: str, name: str, verb: str, body: dict[str, Any], if_version: int | None) -> None:
    """Move an alias, and print a note if that hides another one: its callers get other answers from now on."""
    before = find(_path(name))
    moved = call(method, _path(name) + verb, json=body, headers=if_match(if_version))
    unmoved = ""
    # The API does not record a move to the current state, nor its reason; the version shows that.
    if before and (before["tenant"], before["version"]) == (moved["tenant"], moved["version"]):
        unmoved = f": no change{', and the reason is not recorded' if body['reason'] else ''}"
    typer.echo(f"{describe_alias(moved)}{unmoved}")
    if hidden := _describe_hidden(before, moved["tenant"]):
        note(f"note: {hidden} now; `mens aliases delete {name}` shows it again")


def require_adapter_id(text: str) -> str:
    """Return the adapter id for an id or its prefix; end the command if the name refers to something else."""
    if "@" not in text:
        alias = None if describe_bad_name(text) else find(_path(text))
        points = f" The alias {text} points to {describe_targets(alias['targets'])}." if alias else ""
        none = f"{text!r} is not an adapter's id (ids look like NAME@DIGEST).{points}"
        fail_with(NotFound(Code.ADAPTER_NOT_FOUND, none, remedy=LIST_MODELS, param="adapter"))
    return resolve_adapter_id(text)


def _path(name: str) -> str:
    # Also checked here, because a request with a slash in the name would not reach the API's route.
    if fault := describe_bad_name(name):
        fail_with(InvalidRequest(Code.NAME_INVALID, f"name: {fault}.", param="name"))
    return f"/v1/aliases/{quote(name, safe='')}"


def if_match(version: int | None) -> dict[str, str]:
    """Return the header that makes a move fail if another one came first; empty if any version will do."""
    return {} if version is None else {"If-Match": f'"{version}"'}
