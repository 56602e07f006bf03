"""``mens policies``: requirements that adapters must meet before an alias may point to them; reads, stores and assigns
policy files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.client.connection import call, fail_with, find_all, note
from cli.client.json_errors import Json
from cli.commands.aliases import Reason
from cli.output import format_minute, print_table
from shared.errors import Code, InvalidRequest
from shared.gates.feasibility import RunFacts, hopeless_gates
from shared.gates.policy import GatePolicy
from shared.gates.policy_file import policy_digest, read_policy

app = typer.Typer(
    no_args_is_help=True,
    help="Policies: files of gates that an adapter must pass before an alias may point to it (docs/evaluation.md).\n\n"
    "Write a file, `mens policies check FILE`, `mens policies put NAME FILE`, then `mens policies assign alias:NAME "
    "POLICY`. From then on the alias moves only with a receipt: `mens receipts create ADAPTER --alias NAME` creates "
    "one.",
)

File = Annotated[Path, typer.Argument(help="Policy file (YAML).", exists=True, dir_okay=False, readable=True)]
Scope = Annotated[str, typer.Argument(help="`alias:NAME`, `tenant` or `server`.")]
PolicyName = Annotated[str, typer.Argument(help="Name of a policy, or its digest.")]


@app.command("check")
def check(file: File) -> None:
    """Read a policy file and show its requirements with their defaults. Stores nothing and needs no installation."""
    policy = _read(file)
    typer.echo(f"{file} is a policy, digest {policy_digest(policy)[:12]}")
    _print_gates(policy)
    # Offline, evals and files are unknown.
    unknown = {name: RunFacts() for name in policy.runs}
    _print_notes([gate.describe() for gate in hopeless_gates(policy, unknown)])


@app.command("put")
def put(
    name: Annotated[str, typer.Argument(help="Name to store the policy under: letters, digits, `.`, `_`, `-`.")],
    file: File,
) -> None:
    """Store a policy file under a name. Aliases and tenants that an older file of the name governs keep it, and are listed."""
    _read(file)
    stored = call("POST", "/v1/policies", json={"name": name, "source": file.read_text(encoding="utf-8")})
    older = [
        assignment
        for assignment in find_all("/v1/policy_assignments")
        if (assignment["policy"]["tenant"], assignment["policy"]["name"]) == (stored["tenant"], name)
        and assignment["policy"]["digest"] != stored["digest"]
    ]
    lets_govern = "" if older else f"; assign it: `mens policies assign alias:NAME {name}`"
    typer.echo(f"{name} is stored, digest {stored['digest'][:12]}{lets_govern}")
    _print_notes(stored.get("notes", []))
    for assignment in older:
        stays = f"{assignment['scope']} is still governed by the older {name} ({assignment['policy']['digest'][:12]})"
        typer.echo(f"{stays}; assign this one: `mens policies assign {assignment['scope']} {name}`")


@app.command("list")
def list_policies(as_json: Json = False) -> None:
    """Show all policies, with the aliases and tenants that each governs."""
    policies, assignments = find_all("/v1/policies"), find_all("/v1/policy_assignments")
    if as_json:
        typer.echo(json.dumps({"policies": policies, "assignments": assignments}, indent=2))
        return
    rows = []
    for policy in policies:
        key = (policy["tenant"], policy["name"], policy["digest"])
        governs = [assignment["scope"] for assignment in assignments if tuple(assignment["policy"].values()) == key]
        rows.append(
            (
                policy["name"],
                policy["digest"][:12],
                policy["tenant"],
                format_minute(policy["created_at"]),
                ", ".join(governs),
            )
        )
    print_table(("policy", "digest", "tenant", "stored (UTC)", "governs"), rows)


@app.command("show")
def show(
    name: PolicyName, source: Annotated[bool, typer.Option("--source", help="Print the file as it was stored.")] = False
) -> None:
    """Show the requirements of a policy, gate by gate."""
    stored = call("GET", f"/v1/policies/{quote(name, safe='')}")
    if source:
        typer.echo(stored["source"], nl=False)
        return
    typer.echo(
        f"{stored['name']}  policy of {stored['tenant']}, digest {stored['digest'][:12]}, by {stored['created_by']}"
    )
    _print_gates(GatePolicy.model_validate(stored["policy"]))


@app.command("assign")
def assign(scope: Scope, policy: PolicyName, reason: Reason = "") -> None:
    """Assign a policy to an alias, the tenant or the server. Replacing an assigned policy needs an admin's key."""
    made = call("PUT", f"/v1/policy_assignments/{quote(scope, safe=':')}", json={"policy": policy, "reason": reason})
    typer.echo(f"{made['policy']['name']} ({made['policy']['digest'][:12]}) governs {scope} from now on")
    _print_notes(made.get("notes", []))


@app.command("unassign")
def unassign(scope: Scope, reason: Reason = "") -> None:
    """Remove the policy of an alias, the tenant or the server. This needs an admin's key, and is recorded in the
    history.
    """
    call("DELETE", f"/v1/policy_assignments/{quote(scope, safe=':')}", params={"reason": reason})
    typer.echo(f"no policy governs {scope} any longer")


@app.command("history")
def history(scope: Scope, limit: Annotated[int, typer.Option(help="Number of changes to show.")] = 100) -> None:
    """Show changes of assigned policies, with author, time and reason; newest first."""
    rows = [
        (str(move["version"]), format_minute(move["moved_at"]), move["actor"], _describe(move["to"]), move["reason"])
        for move in find_all(f"/v1/policy_assignments/{quote(scope, safe=':')}/history", limit=limit)
    ]
    print_table(("version", "when (UTC)", "who", "policy", "why"), rows)


def _print_notes(notes: list[str]) -> None:
    for sentence in notes:
        note(f"note: {sentence}")


def _read(file: Path) -> GatePolicy:
    try:
        return read_policy(file.read_text(encoding="utf-8"))
    except InvalidRequest as error:
        fail_with(InvalidRequest(Code.POLICY_INVALID, f"{file}: {error.message}", param=error.param))
    except UnicodeDecodeError:
        fail_with(InvalidRequest(Code.POLICY_INVALID, f"{file} is not UTF-8 text."))


def _print_gates(policy: GatePolicy) -> None:
    rows = []
    for name, gate in policy.gates.configured():
        bounds_of_gate = gate.model_dump(exclude_none=True, exclude={"block", "applies", "run"})
        bounds = ", ".join(
            f"{key} {_short(value)}" for key, value in bounds_of_gate.items() if not key.endswith("criterion")
        )
        effect = "does not apply" if not gate.applies else "blocks" if gate.block else "warns"
        rows.append((name, effect, getattr(gate, "run", None) or "", bounds))
    print_table(("gate", "effect", "run", "asks"), rows)


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={number:g}" for key, number in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _describe(policy: dict[str, Any] | None) -> str:
    return f"{policy['name']} ({policy['digest'][:12]})" if policy else "(none)"
