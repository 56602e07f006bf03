"""``mens models`` with its verbs, and ``mens chat``: what can be asked, and asking it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer

from cli.aliases import describe_targets
from cli.connection import call, connect, describe_error, fail, find_all, no_answer
from cli.model_facts import describe, look_up
from cli.names import whole_adapter_id
from cli.tables import print_table

app = typer.Typer(help="List everything that `model` may say: bases, adapters, aliases; show one; delete an adapter.")


@app.callback(invoke_without_command=True)
def models(context: typer.Context) -> None:
    """List everything that `model` may say: bases, adapters, aliases."""
    if context.invoked_subcommand is not None:
        return
    print_table(("model", "kind", "base", "points to", "tenant"), map(_row, find_all("/v1/models")))


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(help="Base model, alias, or adapter id or its beginning; a quarantined one's, too.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Everything the API knows, as JSON.")] = False,
) -> None:
    """Show one model: what it is, whose, and what of it was measured on each replica (docs/certificates.md)."""
    name = whole_adapter_id(name)
    found = look_up(name)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    typer.echo(describe(name, found))


@app.command()
def delete(
    adapter: Annotated[
        str, typer.Argument(help="Id of the adapter, NAME@DIGEST; 8 digits are enough if no other has them.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete an adapter: nobody is routed to it from now on; its files go when every replica has let go of it."""
    adapter = whole_adapter_id(adapter, least_digits=8)
    if not yes:
        typer.confirm(f"Delete {adapter}? This cannot be undone", abort=True)
    call("DELETE", f"/v1/models/{quote(adapter, safe='')}")
    typer.echo(f"{adapter} is deleted; its files follow (docs/retention.md).")


def chat(
    model: Annotated[str, typer.Argument(help="Base model, alias, or adapter id or its beginning.")],
    message: Annotated[str, typer.Argument(help="What to say.")],
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
) -> None:
    """Ask a model one question; the answer is streamed."""
    messages = [{"role": "system", "content": system}] if system else []
    body = {"messages": [*messages, {"role": "user", "content": message}], "stream": True}
    body |= {"model": whole_adapter_id(model), "max_tokens": max_tokens, "temperature": temperature}
    connection = connect()
    try:
        with connection.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.is_error:
                response.read()
                fail(describe_error(response))
            for text in _streamed_text(response):
                typer.echo(text, nl=False)
    except httpx.HTTPError as error:
        fail(no_answer(connection, error))
    typer.echo()


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    mens = model["mens"]
    points_to = describe_targets(mens["targets"]) if "targets" in mens else str(mens.get("adapter_id", ""))
    tenant = "" if mens["kind"] == "base" else model["owned_by"]  # the catalogue is nobody's
    return model["id"], mens["kind"], mens.get("base_model", ""), points_to, tenant


def _streamed_text(response: httpx.Response) -> Iterator[str]:
    for line in response.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            choices = json.loads(line.removeprefix("data: ")).get("choices") or [{}]
            yield choices[0].get("delta", {}).get("content") or ""
