"""``mens scorecard``: how well models write code that compiles, and whether one may replace another."""

from __future__ import annotations

import json
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from cli.client.connection import Connection, call, connect, fail, fail_with, note, saved_connection
from cli.client.json_errors import Json
from cli.evaluation.scorecard_sampling import sampler
from cli.output import print_table
from shared.checkers.contained import ContainedCheckers
from shared.errors import MensError
from shared.scorecard.artifacts import ALL_EVENTS, SPEC, SUMMARY, ScorecardFolder, read_events, read_summary
from shared.scorecard.decision import decide as decide_by
from shared.scorecard.records import SCHEMAS, ScorecardEvent, ScorecardSummary
from shared.scorecard.run import run_scorecard
from shared.scorecard.spec import ScorecardSpec, read_spec
from shared.settings import Settings, read_settings

app = typer.Typer(
    no_args_is_help=True,
    help="Scorecards: tasks that models answer with code. Code that does not compile is returned with the errors, a few times. A "
    "scorecard counts answers that compile, answers that solve the task, and repairs.\n\n"
    "Write a spec (examples/scorecard/python.json is one), then `run` it and `verify` the result. `decide` says where to invest, and "
    "`promote` whether a candidate may replace an incumbent.",
)
SpecFile = Annotated[
    Path, typer.Argument(help="The spec, a JSON file; `mens scorecard schema spec` prints its schema.")
]
Folders = Annotated[list[Path], typer.Argument(help="Folders of finished scorecards, or their summary.json.")]


@app.command("run")
def run(
    spec_file: SpecFile,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for events, answers and summary. Default: NAME.scorecard in the spec's folder."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a scorecard: every task under every condition, in turn.

    The same command continues an interrupted run. Conditions of the mode `http_generate` are sampled at their `server_url`, with your
    key if that is your installation; `fixture_file` reads recorded answers.
    """
    try:
        spec = read_spec(spec_file)
        folder = ScorecardFolder(output or spec_file.with_suffix(".scorecard"))
        is_sampled = any(condition.mode == "http_generate" for condition in spec.conditions)
        with ContainedCheckers() as checkers, httpx.Client() as client:
            summary = run_scorecard(
                spec,
                spec_file,
                folder,
                sampler(spec, client, _connection() if is_sampled else None),
                checkers,
                _report,
                _commit(),
            )
    except MensError as error:
        fail_with(error)
    _show(summary, as_json)
    note(f"{folder.path}/{SUMMARY}, {folder.path}/{ALL_EVENTS}")


@app.command("decide")
def decide(summaries: Folders, as_json: Json = False) -> None:
    """Decide where to invest, from one or more summaries: in further adapters, or in a model of your own.

    It is your own model if two or more adapters (`backend` qlora) lie within .05 of each other in task success, and the best condition
    misses one of: strictness .95, compile@1 .9, semantic success .85, anti-stub .92. Nothing is promoted: see `promote`.
    """
    try:
        decision = decide_by([read_summary(_summary_of(path)) for path in summaries])
    except MensError as error:
        fail_with(error)
    if as_json:
        typer.echo(decision.model_dump_json(indent=2))
        return
    typer.echo(f"{decision.recommended}: {decision.reason}")


@app.command("verify")
def verify(folders: Folders) -> None:
    """Verify scorecards: files match their schemas, totals match the events, and each stored answer is checked again.

    Exit code 1 if anything differs.
    """
    faults = 0
    try:
        with ContainedCheckers() as checkers:
            for path in folders:
                folder = ScorecardFolder(path.parent if path.name == SUMMARY else path)
                language = read_spec(folder.path / SPEC).validator
                for fault in folder.faults(partial(checkers.check, language)):
                    faults += 1
                    typer.echo(f"{folder.path}: {fault}")
    except MensError as error:
        fail_with(error)
    if faults:
        fail(f"{faults} {'fault' if faults == 1 else 'faults'}")
    typer.echo("verified: " + ", ".join(str(path) for path in folders))


@app.command("promote")
def promote(
    folders: Folders,
    candidate: Annotated[str, typer.Option(help="Id of the condition that would replace the incumbent.")],
    incumbent: Annotated[str, typer.Option(help="Id of the condition that would be replaced.")],
    alias: Annotated[
        str | None, typer.Option(help="The alias that would move; it must point to the incumbent of one cycle.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Also write the cycles to this file, for `mens receipts create … --cycles FILE`."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Decide whether a candidate may replace an incumbent, from two or more cycles. Moves nothing; exit code 1 if it may not.

    The gate `cycles` of a policy decides in the same way, and its receipt moves an alias.

    A cycle is a scorecard with both conditions, sampled. Two cycles are distinct if their tasks or the models' training
    seeds differ. In each, the candidate must gain more than .05 in task success, with an interval above 0, and must not
    lose in any other KPI.
    """
    try:
        cycles = [_cycle(path.parent if path.name == SUMMARY else path, candidate, incumbent) for path in folders]
    except MensError as error:
        fail_with(error)
    if save:
        save.write_text("".join(f"{json.dumps(cycle)}\n" for cycle in cycles))
    decision = call("POST", "/v1/promotions:evaluate", json={"alias": alias, "cycles": cycles})
    if as_json:
        typer.echo(json.dumps(decision, indent=2))
    else:
        for number, cycle in enumerate(decision["cycles"], start=1):
            _show_cycle(number, cycle)
        typer.echo(f"{decision['verdict']}: {decision['reason']}")
    if not decision["eligible"]:
        raise typer.Exit(1)


@app.command("schema")
def schema(
    name: Annotated[str, typer.Argument(help="spec, event, summary or decision.")],
) -> None:
    """Print the JSON Schema of a scorecard's files."""
    if name not in SCHEMAS:
        fail(f"unknown schema {name!r}; choose one of {', '.join(SCHEMAS)}")
    typer.echo(json.dumps(SCHEMAS[name].model_json_schema(by_alias=True), indent=2))


def _connection() -> Connection | None:
    """Return the configured installation, whose key is sent only to it and not to other endpoints."""
    is_known = os.environ.get("MENS_API_URL") or saved_connection(read_settings(Settings).home)
    return connect() if is_known else None


def _summary_of(path: Path) -> Path:
    return path / SUMMARY if path.is_dir() else path


def _cycle(folder: Path, candidate: str, incumbent: str) -> dict[str, object]:
    spec: ScorecardSpec = read_spec(folder / SPEC)
    events = [
        event.model_dump(mode="json")
        for event in read_events(folder / ALL_EVENTS)
        if event.condition_id in {candidate, incumbent}
    ]
    return {
        "spec": spec.model_dump(mode="json"),
        "candidate": candidate,
        "incumbent": incumbent,
        "events": events,
    }


def _report(event: ScorecardEvent, done: int, total: int) -> None:
    state = "compiles" if event.compile_pass_n else "stalled" if event.repair_stalled else "does not compile"
    attempts = f", {event.attempts} attempts" if event.attempts > 1 else ""
    note(f"[{done}/{total}] {event.condition_id} {event.task_id}: {state}{attempts}")


def _show(summary: ScorecardSummary, as_json: bool) -> None:
    if as_json:
        typer.echo(summary.model_dump_json(indent=2, by_alias=True))
        return
    columns = ["condition", "tasks", "compile@1", "compile@n", "task", "semantic", "stalled", "anti-stub"]
    rows = [
        [
            condition.id,
            str(condition.total_tasks),
            *(
                f"{share:.3f}"
                for share in (
                    condition.compile_pass_at_1,
                    condition.compile_pass_at_n,
                    condition.task_success,
                    condition.semantic_task_success,
                    condition.repair_stall_rate,
                    condition.anti_stub_pass_rate,
                )
            ),
        ]
        for condition in summary.conditions
    ]
    print_table(columns, rows, header=True)


def _show_cycle(number: int, cycle: dict[str, Any]) -> None:
    typer.echo(f"cycle {number}: {cycle['candidate']} against {cycle['incumbent']}")
    rows = [
        [
            str(delta["kpi"]),
            f"{delta['incumbent']:.4g}",
            f"{delta['candidate']:.4g}",
            f"{delta['delta']:+.4g}",
            "{:.4g} to {:.4g}".format(*delta["interval"]),
            f"{delta['required']}",
            "yes" if delta["holds"] else "no",
        ]
        for delta in cycle["deltas"]
    ]
    if rows:
        print_table(["KPI", "incumbent", "candidate", "delta", "interval", "required", "holds"], rows, header=True)


def _commit() -> str | None:
    """Return the commit of the working folder; None outside a repository."""
    try:
        completed = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return completed.stdout.strip() or None if completed.returncode == 0 else None
