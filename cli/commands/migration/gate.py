"""``mens migrate openai gate``: is the successor as good as the tuned model? Asks the installation; OpenAI is not asked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import httpx
import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cli.client.connection import connect, fail, note
from cli.client.json_errors import note_json
from cli.migration.archive.contents import Contents
from cli.migration.archive.folder import Archive, safe_name
from cli.migration.gate.answers import Candidate, answers_file, ask, pending, read_answers, resolve
from cli.migration.gate.compare import DEFAULT_MARGIN, make_receipt, questions_to_judges
from cli.migration.gate.judges import (
    Body,
    Judges,
    find_judges,
    judge_models,
    judgements_file,
    prompt_tokens,
    read_judgements,
    unanswered,
)
from cli.migration.gate.recorded import recorded_models, recorded_prompts
from cli.migration.receipts import LARGE_MARGIN, Gate, Receipt, receipt_file, write_receipt
from cli.output import print_table
from shared.errors import MensError
from shared.settings import Settings, read_settings
from shared.statistics.paired import Status

app = typer.Typer()
TIMEOUT_SECONDS = 600.0
MAX_JUDGE_REQUESTS = 5000


class Trained(msgspec.Struct, frozen=True):
    """What ``train/PROJECT/MODEL/BASE.json`` says of a successor."""

    adapter: str = ""


@app.command("gate")
def gate(
    *,
    archive: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="Folder of an export with recorded answers.")
    ] = Path("openai-archive"),
    model: Annotated[
        list[str],
        typer.Option(
            "--model", help="Only this tuned model; may be repeated.", default_factory=list, show_default=False
        ),
    ],
    candidate: Annotated[
        list[str],
        typer.Option(
            "--candidate",
            metavar="[TUNED=]NAME",
            help="Adapter or alias that is to succeed a tuned model; may be repeated. Left out: what `train` has trained.",
            default_factory=list,
            show_default=False,
        ),
    ],
    margin: Annotated[
        float, typer.Option(min=0.001, max=0.9, help="What a mean score may lose; a smaller one needs more prompts.")
    ] = DEFAULT_MARGIN,
    judge: Annotated[
        list[str],
        typer.Option(
            "--judge",
            metavar="[MODEL=]NAME",
            help="Model here that judges for your graders which ask MODEL at OpenAI; may be repeated. Left out: MODEL, if it is served here.",
            default_factory=list,
            show_default=False,
        ),
    ],
    max_judge_requests: Annotated[
        int, typer.Option(min=0, help="Ask judges so often at most, for a tuned model; what is left is unscored.")
    ] = MAX_JUDGE_REQUESTS,
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Requests at once.")] = 4,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent; send nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", callback=note_json, help="Print the receipts as JSON.")] = False,
) -> None:
    """Compare successors with the tuned models' recorded answers, prompt by prompt, and write a receipt for each.

    The recorded prompts are sent to the installation (MENS_API_URL, MENS_API_KEY) exactly as they were sent to OpenAI. Judged by
    your own graders where they agree with OpenAI's stored scores, by the labels of validation rows, by similarity, and by form:
    JSON, schemas, tool calls. Graders that ask a model ask one of the installation (--judge), never the successor itself; how many
    requests and tokens that is, is said first. A gate passes when a loss of more than --margin is excluded with 95 % confidence; where the
    prompts are too few for that, it says how many are needed.

    Can be interrupted: what has an answer is not sent again. Writes gate/MODEL.json, which `switch` asks for. Exit code 0 when
    every model has passed, else 1.
    """
    known = {name: project for name, project in recorded_models(archive).items() if not model or name in model}
    if not known or set(model) - known.keys():
        names = ", ".join(sorted(set(model) - known.keys())) or "any model"
        fail(f"{archive} has no recorded answers of {names}. Before OpenAI ends it: `mens migrate openai record`.")
    chosen, failures = _candidates(archive, list(known), candidate)
    receipts: list[Receipt] = []
    chosen_judges = {asked: name for asked, _, name in (text.rpartition("=") for text in judge)}
    for name, named in chosen.items() if dry_run else ():
        _show_dry_run(archive, known[name], name, named, max_judge_requests)
    if not dry_run:
        connection, settings = connect(), read_settings(Settings)
        contents = Contents(archive)
        with Archive(archive), connection.client(TIMEOUT_SECONDS) as client:
            for name, named in chosen.items():
                try:
                    candidate_model = _ask(client, archive, known[name], name, named, concurrency)
                    judges = find_judges(client, judge_models(contents, known[name]), chosen_judges, candidate_model)
                    judges = _ask_judges(
                        client, contents, known[name], name, candidate_model, judges, max_judge_requests, concurrency
                    )
                    receipt = make_receipt(
                        contents, known[name], name, candidate_model, connection.url, margin, settings.sandbox, judges
                    )
                    write_receipt(archive, receipt)
                    receipts.append(receipt)
                except MensError as error:
                    failures.append(f"{name}: {error}")
        _show_all(archive, receipts, as_json=as_json)
    for failure in failures:
        note(f"error: {failure}")
    if failures or any(receipt.verdict is not Status.PASSED for receipt in receipts):
        raise typer.Exit(1)


def _candidates(archive: Path, models: list[str], given: list[str]) -> tuple[dict[str, str], list[str]]:
    """The candidate of each model, and why some have none."""
    named = {tuned: name for tuned, _, name in (text.rpartition("=") for text in given)}
    if unknown := sorted(named.keys() - {"", *models}):
        fail(f"--candidate names {', '.join(unknown)}, without recorded answers; there are {', '.join(models)}.")
    if "" in named and len(models) != 1:
        fail(f"--candidate NAME is for one model; there are {len(models)}: --candidate 'TUNED=NAME' for each.")
    found, failures = {}, []
    for model in models:
        trained = sorted(_trained(archive, model))
        if name := named.get(model) or named.get(""):
            found[model] = name
        elif len(trained) == 1:
            found[model] = trained[0]
        else:
            several = f"several successors were trained, {', '.join(trained)}" if trained else "no successor is known"
            failures.append(f"{model}: {several}; name one: --candidate '{model}=NAME'")
    return found, failures


def _trained(archive: Path, model: str) -> set[str]:
    paths = (archive / "train").glob(f"*/{safe_name(model)}/*.json")
    found = (msgspec.json.decode(path.read_bytes(), type=Trained).adapter for path in paths)
    return {adapter for adapter in found if adapter}


def _show_dry_run(archive: Path, project: str, model: str, named: str, max_judge_requests: int) -> None:
    prompts, kept = len(recorded_prompts(archive, project, model)), len(read_answers(archive, model))
    typer.echo(f"{model}: {prompts} recorded prompts would be sent to {named}; {kept} answers are kept of earlier runs")
    contents = Contents(archive)
    if names := judge_models(contents, project):
        questions = questions_to_judges(contents, project, model, None, Judges(""), read_settings(Settings).sandbox)
        typer.echo(f"  judges ({', '.join(names)}): {_cost(questions[:max_judge_requests])}")


def _ask(client: httpx.Client, archive: Path, project: str, model: str, name: str, concurrency: int) -> Candidate:
    """Send what has no answer yet; returns the model that a candidate's name means now."""
    candidate = resolve(client, name)
    bodies = pending(archive, model, recorded_prompts(archive, project, model), candidate)
    if bodies:
        note(f"{model}: {len(bodies)} prompts to {candidate.served}")
    _send(client, archive, answers_file(model), bodies, model, concurrency)
    return candidate


def _ask_judges(
    client: httpx.Client,
    contents: Contents,
    project: str,
    model: str,
    candidate: Candidate,
    judges: Judges,
    most: int,
    concurrency: int,
) -> Judges:
    """Ask the judges what they have not answered yet, within the bound; returns them with all their answers."""
    if not judges.served:
        return judges
    known = read_judgements(contents.folder, model)
    sandbox = read_settings(Settings).sandbox
    bodies = unanswered(questions_to_judges(contents, project, model, candidate, judges, sandbox), known)
    if bodies[:most]:
        note(f"{model}: judges ({', '.join(sorted(set(judges.served.values())))}): {_cost(bodies[:most])}")
    if left := len(bodies[most:]):
        note(f"{model}: {left} more judgements are left out and unscored: --max-judge-requests")
    _send(client, contents.folder, judgements_file(model), bodies[:most], f"judges of {model}", concurrency)
    return replace(judges, known=read_judgements(contents.folder, model))


def _cost(bodies: list[Body]) -> str:
    answers = sum(int(body["max_completion_tokens"]) for body in bodies)
    return f"{len(bodies)} requests, about {prompt_tokens(bodies):,} prompt tokens, at most {answers:,} answer tokens"


def _send(client: httpx.Client, archive: Path, file: str, bodies: list[Body], label: str, concurrency: int) -> None:
    """Send requests, with a bar."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=len(bodies))
        ask(client, archive, file, bodies, concurrency=concurrency, advance=lambda: bar.advance(task))


def _show_all(archive: Path, receipts: list[Receipt], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(receipts), indent=2))
        return
    for receipt in receipts:
        _show(archive, receipt)


def _show(archive: Path, receipt: Receipt) -> None:
    counts = receipt.counts
    typer.echo(f"{receipt.foreign_model} → {receipt.mens_model}: {receipt.verdict}{_because(receipt.reason)}")
    refused = ", ".join(f"{count} {code}" for code, count in counts.refused.items())
    typer.echo(f"  {counts.answered} of {counts.recorded} recorded prompts were answered{_because(refused)}")
    if not counts.nothing_measured:
        for code, reason in counts.reasons.items():
            typer.echo(f"    {code}, as of the first: {reason}")
    if counts.unbounded:
        typer.echo(
            f"  {counts.unbounded} without the recorded bound on tokens, which is longer than the model's context"
        )
    for check in receipt.graders:
        unscored = f", {check.unscored} unscored" if check.unscored else ""
        why = check.refused or ("agrees" if check.may_block else "may not block")
        typer.echo(
            f"  {check.name}: {check.agreeing} of {check.compared} of OpenAI's stored scores are the same{unscored}: {why}"
        )
        for difference in check.differences:
            typer.echo(f"    {difference['item']}: {difference['stored']} at OpenAI, {difference['here']} here")
    columns = ("gate", "status", "old", "new", "value", "interval", "bound", "prompts", "needed", "visible", "why")
    if receipt.gates:
        print_table(columns, [_row(each) for each in receipt.gates], header=True)
    if advice := _advice(receipt):
        note(advice)
    note(f"written to {archive / receipt_file(receipt.foreign_model)}")


def _advice(receipt: Receipt) -> str:
    """What to do now, or what the verdict does not say."""
    if receipt.counts.nothing_measured:
        return "mend what the refusals say, on the installation or with another --candidate, and run `gate` again"
    if receipt.verdict is Status.MISSING_EVIDENCE:
        return "to decide it, record more prompts, or allow a larger loss with --margin; each gate says what it lacks"
    if receipt.verdict is Status.FAILED:
        return "to train it better: `plan --bases` with a larger base, or more epochs in plans/; then `train` and `gate` again"
    if receipt.margin > LARGE_MARGIN:
        return f"a margin of {receipt.margin:g} proves little: so much of each score may be lost, and the gate passes"
    return ""


def _row(found: Gate) -> tuple[str, ...]:
    interval = f"{found.interval[0]:+.3f} … {found.interval[1]:+.3f}" if found.interval else ""
    state = str(found.status) if found.block else f"({found.status})"
    needed = "" if found.items_needed is None else str(found.items_needed)
    numbers = [_number(value) for value in (found.old, found.new, found.value)]
    bound, visible = _number(found.bound), _number(found.smallest_visible)
    return (found.name, state, *numbers, interval, bound, str(found.items), needed, visible, found.reason)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""
