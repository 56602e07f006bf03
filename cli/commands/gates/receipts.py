"""``mens receipts``: outcomes of judging adapters by policies: passed and failed gates, and by how much."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.client.completion import complete_adapter, complete_alias
from cli.client.connection import call, fail
from cli.client.id_prefixes import RECEIPTS, resolve_adapter_id
from cli.client.json_errors import Json
from cli.client.uploads import RequestUploads
from cli.output import format_minute, print_table
from shared.counted_nouns import counted
from shared.errors import Code, Conflict
from shared.gate_outcome import GateStatus, overall_outcome

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Receipts: create, list, show. A receipt records, gate by gate, whether an adapter passed a policy, compared "
        "with the adapter it would replace."
    ),
)

POLL_SECONDS = 1.0
FINAL = ("succeeded", "failed", "cancelled")


@app.command("list")
def list_receipts(
    adapter: Annotated[
        str | None,
        typer.Option(autocompletion=complete_adapter, help="Only receipts of this adapter: its id or the beginning."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Number of receipts to show.")] = 20,
    as_json: Json = False,
) -> None:
    """Show receipts, newest first."""
    query = {"limit": limit} | ({"adapter": resolve_adapter_id(adapter)} if adapter else {})
    records = call("GET", "/v1/receipts", params=query)["data"]
    if as_json:
        typer.echo(json.dumps(records, indent=2))
        return
    rows = [
        (
            record["id"],
            record["adapter_id"],
            record["incumbent_id"] or "the base",
            record["receipt"]["policy"]["name"],
            _outcome(record),
            format_minute(record["created_at"]),
            format_minute(record["valid_until"]),
        )
        for record in records
    ]
    print_table(("receipt", "adapter", "compared with", "policy", "outcome", "judged (UTC)", "valid until"), rows)


@app.command("create")
def create(
    adapter: Annotated[
        str, typer.Argument(autocompletion=complete_adapter, help="Id of a published adapter, or its beginning.")
    ],
    alias: Annotated[
        str,
        typer.Option(
            autocompletion=complete_alias,
            help="Alias that the adapter would serve; it is compared with the alias's current adapter.",
        ),
    ],
    policy: Annotated[str | None, typer.Option(help="Try another policy instead of the alias's own.")] = None,
    cycles: Annotated[
        Path | None,
        typer.Option(help="File of cycles for the gate `cycles`, from `mens scorecard promote … --save FILE`."),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the evaluation ends.")] = True,
) -> None:
    """Evaluate an adapter under the policy of an alias, and show which gates passed or failed and by how much."""
    body = {"adapter": resolve_adapter_id(adapter), "alias": alias} | ({"policy": policy} if policy else {})
    uploads = RequestUploads()
    if cycles:
        body["cycles"] = uploads.add(cycles)
    job = uploads.send("/v1/receipts", json=body)
    typer.echo(f"{job['id']} evaluates {body['adapter']} for {alias}", err=True)
    if not wait:
        return
    while job["state"] not in FINAL:
        time.sleep(POLL_SECONDS)
        job = call("GET", f"/v1/jobs/{job['id']}")
    if job["state"] != "succeeded":
        stopped = Conflict(Code.JOB_STATE_CONFLICT, f"The job {job['id']} is {job['state']}.").as_dict()
        failure = job["error"] or stopped
        fail(f"{failure['code']}: {failure['message']}", failure)
    receipt = call("GET", f"/v1/receipts/{job['result']['receipt']['id']}")
    _show(receipt)
    if not receipt["passed"]:
        raise typer.Exit(1)


@app.command("show")
def show(
    receipt: Annotated[str, typer.Argument(help="Id of the receipt, or any unique part of it.")],
    as_json: Json = False,
) -> None:
    """Show which gates passed or failed, by how much, and the next step."""
    record = call("GET", f"/v1/receipts/{quote(RECEIPTS.resolve(receipt), safe='')}")
    if as_json:
        typer.echo(json.dumps(record, indent=2))
        return
    _show(record)


def _show(record: dict[str, Any]) -> None:
    typer.echo("\n".join(describe_receipt(record)))
    print_rows(record["receipt"]["gates"])
    typer.echo(next_step(record))


def describe_receipt(record: dict[str, Any]) -> Iterator[str]:
    """Yield a few lines that describe a receipt."""
    receipt = record["receipt"]
    base = receipt["serving_base"]
    yield f"{record['id']}  {_outcome(record)}: {record['adapter_id']} under the policy {_policy(receipt)}"
    yield f"compared with {receipt['compared_with'] or 'nothing'}"
    yield f"served base   {base['name'] + ' ' + base['digest'][:12] if base else 'not known'}"
    yield f"sandbox       {receipt['sandbox'] or 'not used: no criterion runs code'}"
    yield f"judged        {format_minute(record['created_at'])} UTC, valid until {format_minute(record['valid_until'])}"
    # Fields that an API of the previous release lacks are left out.
    if attempt := receipt.get("attempt"):
        yield f"attempt       {attempt} of this pair under this policy: its comparisons may err by {receipt['alpha']:.3g} together"
    for row in receipt["gates"]:
        floors = {check.get("noise_floor") for check in row.get("checks", [])} - {None}
        if floors:
            yield f"noise floor   {row['name']}: the incumbent differs from itself by {max(floors):.3g}"
    for run, criteria in receipt.get("unrepeatable", {}).items():
        counts = ", ".join(f"{name} ({counted(count, 'answer')})" for name, count in criteria.items())
        yield f"unrepeatable  {run}: different scores the second time by {counts}"


def describe_outcome(record: dict[str, Any]) -> str:
    """Describe a receipt in one line: its outcome, and the gates that did not pass."""
    receipt = record["receipt"]
    lacking = ", ".join(row["name"] for row in receipt["gates"] if not row["passed"] and row["block"])
    outcome = _outcome(record) + (f" ({lacking})" if lacking else "")
    against = receipt["compared_with"] or "nothing"
    return (
        f"{record['id']}: {outcome}; policy {_policy(receipt)}, compared with {against}, until "
        f"{record['valid_until'][:10]}"
    )


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Print the gates as a table: the measured value, the required one, and the number of items."""
    print_table(
        ("gate", "outcome", "effect", "found", "required", "items", "interval", "measured"),
        [
            (
                row["name"],
                GateStatus(row["status"]).word,
                "blocks" if row["block"] else "warns",
                _number(row["value"]),
                _bound(row),
                "" if row["n"] is None else str(row["n"]),
                "" if row["interval"] is None else f"{row['interval'][0]:.3g} … {row['interval'][1]:.3g}",
                row["message"],
            )
            for row in rows
        ],
        header=True,
    )


def next_step(record: dict[str, Any]) -> str:
    """Return the next step after a receipt."""
    receipt, adapter = record["receipt"], record["adapter_id"]
    if record["passed"]:
        return f"next: mens aliases set NAME {adapter}"
    missing = [row for row in receipt["gates"] if row["block"] and row["status"] == "missing_evidence"]
    needed = max((row["items_needed"] or 0 for row in missing), default=0)
    if needed:
        return f"next: give the policy's run at least {counted(needed, 'item')}, and evaluate {adapter} again"
    if missing:
        return (
            f"next: give {', '.join(row['name'] for row in missing)} the evidence that is missing, and evaluate "
            f"{adapter} again"
        )
    return "next: train a better adapter; an admin may override: mens aliases set NAME ADAPTER --override --reason WHY"


def _outcome(record: dict[str, Any]) -> str:
    """Return ``passed``, ``failed`` or ``no evidence``."""
    return overall_outcome(record["passed"], record["receipt"]["gates"]).word


def _policy(receipt: dict[str, Any]) -> str:
    """Return a policy's name with a prefix of its digest: another file under the same name is another policy."""
    return f"{receipt['policy']['name']} ({receipt['policy']['digest'][:12]})"


def _bound(row: dict[str, Any]) -> str:
    deciding = next((check for check in row["checks"] if check["status"] == row["status"]), None)
    if deciding is None:
        return ""
    sign = {"at_least": "≥ ", "at_most": "≤ ", "loss_at_most": "loss ≤ ", "wins_above": "wins > "}[deciding["relation"]]
    return f"{sign}{deciding['bound']:.3g}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
