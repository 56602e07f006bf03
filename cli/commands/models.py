"""``mens models`` and ``mens chat``: lists models, shows one with its certificates, deletes an adapter, chats."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.chat.conversation import ChatSettings, Conversation, echo_title
from cli.chat.terminal import converse
from cli.client.completion import complete_adapter, complete_model
from cli.client.connection import call, fail, find, find_all, note
from cli.client.id_prefixes import resolve_adapter_id
from cli.client.json_errors import Json, note_json
from cli.client.lineage import describe_lineage
from cli.client.self_evaluation import describe_evaluation
from cli.client.start_command import note_base
from cli.commands.aliases import describe_alias, describe_share, describe_targets
from cli.commands.gates.receipts import describe_outcome
from cli.output import print_table

NUMBERS = {"effect": "effect_rms_nats", "engine error": "engine_error_rms_nats", "base shift": "base_shift_rms_nats"}
"""Figures of a certificate that are shown, in nats; docs/certificates.md explains them."""

MAX_ANCESTORS = 20

app = typer.Typer(help="List every name that `model` accepts: bases, adapters, aliases; show one; delete an adapter.")


@app.callback(invoke_without_command=True)
def models(context: typer.Context, as_json: Json = False) -> None:
    """List every name that `model` accepts: bases, adapters, aliases, names of another provider."""
    if context.invoked_subcommand is None:
        list_models(as_json)


@app.command("list")
def list_models(as_json: Json = False) -> None:
    """List every name that `model` accepts, like `mens models` alone."""
    listed, rows = find_all("/v1/models"), []
    if as_json:
        typer.echo(json.dumps(listed, indent=2))
        return
    for model in listed:
        mens = model["mens"]
        points_to = describe_targets(mens["targets"]) if "targets" in mens else str(mens.get("adapter_id", ""))
        points_to = mens["stands_for"]["name"] if "stands_for" in mens else points_to
        # A base of the catalogue belongs to no tenant.
        tenant = "" if mens["kind"] == "base" else model["owned_by"]
        rows.append((model["id"], mens["kind"], mens.get("base_model", ""), points_to, tenant))
    print_table(("model", "kind", "base", "points to", "tenant"), rows)
    bases = {name for name, kind, *_ in rows if kind == "base"}
    for name, kind, *_ in rows:
        if kind != "base" and name in bases:
            note(
                f"note: {name} is a base and an alias; the base answers. Remove one: `mens aliases delete {name}`, or"
                f" `mens base remove {name}` on the machine with the catalogue"
            )
    if name := _to_chat_with(listed):
        note(f'next: mens chat {shlex.quote(name)} "…"')


def _to_chat_with(models: list[dict[str, Any]]) -> str | None:
    """Return the model that a user most likely wants to chat with: an alias, else an adapter, else a served base."""
    usable = [model for model in models if model["mens"]["kind"] != "base" or model["mens"].get("served")]
    order = ("alias", "adapter", "base")
    by_kind = {model["mens"]["kind"]: model["id"] for model in reversed(usable)}
    return next((by_kind[kind] for kind in order if kind in by_kind), None)


@app.command()
def show(
    name: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_model,
            help="Base model, alias, or an adapter's id or its beginning; the adapter may be quarantined.",
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", callback=note_json, help="Print the whole record as JSON.")
    ] = False,
) -> None:
    """Show one model: kind, base, tenant and aliases, and the certificate of each replica (docs/certificates.md)."""
    name = resolve_adapter_id(name)
    looked_up = look_up(name)
    if as_json:
        typer.echo(json.dumps(looked_up, indent=2))
        return
    typer.echo(describe(name, looked_up))


@app.command()
def delete(
    adapter: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_adapter,
            help="Id of the adapter, NAME@DIGEST; 8 digits are enough if they are unique.",
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete an adapter. It gets no more requests, and its files are deleted once every replica has unloaded it."""
    adapter = resolve_adapter_id(adapter, least_digits=8)
    named = find(f"/v1/models/{quote(adapter, safe='')}")
    # The API refuses every other kind with a reason, so no confirmation is needed.
    if not yes and (named is None or named["mens"]["kind"] in ("adapter", "checkpoint")):
        typer.confirm(f"Delete {adapter}? This cannot be undone", abort=True)
    call("DELETE", f"/v1/models/{quote(adapter, safe='')}")
    typer.echo(f"{adapter} is deleted; its files are removed shortly (docs/retention.md).")


def chat(
    model: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_model, callback=note_base, help="Base model, alias, or adapter id or its beginning."
        ),
    ],
    message: Annotated[
        str | None,
        typer.Argument(help="Message to send. Default: standard input if it is a pipe, otherwise a conversation."),
    ] = None,
    other: Annotated[
        str | None,
        typer.Option(
            "--with",
            autocompletion=complete_model,
            metavar="MODEL",
            help="Also ask this model, and compare the answers.",
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Maximum tokens of an answer.")] = 256,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")] = 0.0,
    user: Annotated[
        str | None, typer.Option(help="Send requests as this user: a split alias gives each user one of its adapters.")
    ] = None,
) -> None:
    """Chat with a model: one message, or a conversation without one; --with compares two models.

    Answers are streamed. If the model is an alias, the adapter that answered is named.
    """
    settings = ChatSettings(max_tokens, temperature, user)
    names = [resolve_adapter_id(name) for name in (model, other) if name]
    conversations = [Conversation(name, settings, system) for name in names]
    if message is None and sys.stdin.isatty():
        converse(conversations)
        return
    text = sys.stdin.read().strip() if message is None else message
    if not text:
        fail(f'the message is missing: give one, as in `mens chat {shlex.quote(model)} "…"`.')
    for conversation in conversations:
        conversation.ask(text, echo_title if other else lambda _: None)
    if other is None and conversations[0].stands_for:
        note(f"answered by {conversations[0].stands_for}")


def look_up(name: str) -> dict[str, Any]:
    """Return a model by its name in ``model``, or an adapter that no request can name; end the command if neither
    exists.

    Returns:
        ``model``: as the list of models shows it; None for an adapter that is not published. ``adapters``: the adapter, or
        the targets and the shadow of the alias; none for a base. ``aliases``: those that point to one of the adapters.
        For another provider's name, these values describe the model that it stands for, and ``foreign`` is the entry of
        the name itself.
    """
    model = find(f"/v1/models/{quote(name, safe='')}")
    if model and model["mens"]["kind"] == "foreign":
        return look_up(model["mens"]["stands_for"]["name"]) | {"foreign": model}
    if model and model["mens"]["kind"] == "base":
        return {"model": model, "adapters": [], "aliases": []}
    aliases = find_all("/v1/aliases")
    named = next((alias for alias in aliases if alias["name"] == name), None)
    targets = [*named["targets"], *filter(None, [named["shadow"]])] if named else []
    ids = [target["adapter"] for target in targets] or [name]
    adapters = []
    for adapter_id in ids:
        path = quote(adapter_id, safe="")
        # If the adapter does not exist, raise the error for models, since the name could be a base's.
        adapters.append(find(f"/v1/adapters/{path}") or call("GET", f"/v1/models/{path}"))
    for adapter in adapters:
        path = f"/v1/receipts?adapter={quote(adapter['id'], safe='')}&limit=5"
        # An API of the previous release has none.
        adapter["receipts"] = (find(path) or {"data": []})["data"] if "id" in adapter else []
        adapter["ancestors"] = list(_ancestors(adapter.get("manifest", {})))
    pointing = [alias for alias in aliases if any(describe_share(alias, adapter_id) for adapter_id in ids)]
    return {"model": model, "adapters": adapters, "aliases": pointing}


def _ancestors(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield the ids of the adapters that an adapter was continued from, its parent first."""
    for _ in range(MAX_ANCESTORS):
        if (parent := manifest.get("parent")) is None:
            return
        yield parent["id"]
        manifest = (find(f"/v1/adapters/{quote(parent['id'], safe='')}") or {}).get("manifest", {})


def describe(name: str, looked_up: dict[str, Any]) -> str:
    """Describe the looked-up model: a paragraph for the base or alias, and one for each adapter."""
    model, aliases = looked_up["model"], looked_up["aliases"]
    blocks: list[list[str]] = []
    if foreign := looked_up.get("foreign"):
        stands_for = foreign["mens"]["stands_for"]
        blocks.append(
            [f"{name}  stands for the {stands_for['kind']} {stands_for['name']}", f"tenant   {foreign['owned_by']}"]
        )
        name = stands_for["name"]
    if not looked_up["adapters"]:
        blocks.append(list(_describe_base(model)))
    for alias in aliases:
        if alias["name"] == name:
            moved = f"moved    {alias['moved_at'][:19]}: {describe_alias(alias)}"
            blocks.append([f"{name}  alias", f"tenant   {alias['tenant']}", moved])
    blocks += [list(_describe_adapter(adapter, aliases)) for adapter in looked_up["adapters"]]
    return "\n\n".join("\n".join(block) for block in blocks)


def _describe_base(model: dict[str, Any]) -> Iterator[str]:
    mens = model["mens"]
    yield f"{model['id']}  base model of the catalogue, for every tenant"
    yield f"digest   {mens['digest']}"
    if "merged_from" not in mens:
        return
    merged = mens["merged_from"]
    yield f"merged   {merged['adapter_id']} into {merged['base_model']}; {'offered' if mens['offered'] else 'not offered'}"
    yield from _describe_certificates(mens["certificates"])


def _describe_certificates(certificates: dict[str, Any]) -> Iterator[str]:
    for name, certificate in certificates.items():
        yield f"proof    {name}: {_describe_certificate(certificate)}"
        for warning in certificate.get("warnings", []):
            yield f"warning  {warning}"
    if not certificates:
        yield "proof    none: no replica has measured it"


def _describe_adapter(adapter: dict[str, Any], aliases: list[dict[str, Any]]) -> Iterator[str]:
    shares = filter(None, (describe_share(alias, adapter["id"]) for alias in aliases))
    yield f"{adapter['id']}  {'adapter' if adapter['final'] else 'checkpoint'}, {adapter['state']}"
    yield f"base     {adapter['base_model']}"
    yield f"tenant   {adapter['tenant']}"
    yield f"job      {adapter['job_id']}, step {adapter['step']}"
    yield f"aliases  {', '.join(shares) or 'none'}"
    yield from _describe_certificates(adapter["certificates"])
    yield from describe_evaluation(adapter["metrics"], "measured ")
    for number, (name, value) in enumerate(describe_lineage(adapter["manifest"])):
        yield f"{'' if number else 'lineage':9}{name} {value}"
    if len(ancestors := adapter.get("ancestors", [])) > 1:
        yield f"{'':9}ancestors {', '.join(ancestors)}"
    for receipt in adapter.get("receipts", []):
        yield f"receipt  {describe_outcome(receipt)}"


def _describe_certificate(certificate: dict[str, Any]) -> str:
    failed = ", ".join(certificate["failed"])
    measured = certificate | certificate["parity"]
    numbers = []
    for name, key in NUMBERS.items():
        nats = measured.get(key)
        numbers.append(f"{name} not measured" if nats is None else f"{name} {nats:.3g} nats")
    return f"{f'failed ({failed})' if failed else 'passed'}; {', '.join(numbers)}"
