"""``mens migrate openai gate``: tests whether the successor is as good as the tuned model. It sends requests to the
installation, none to OpenAI.
"""

from __future__ import annotations

import json
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import httpx
import msgspec
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cli.client.connection import connect, fail, note
from cli.client.json_errors import note_json
from cli.output import plain_console
from openai_migration.archive.contents import ArchiveContents
from openai_migration.archive.folder import Archive, safe_name
from openai_migration.gate.answers import Candidate, answers_file, ask, pending, read_answers, resolve
from openai_migration.gate.compare import make_receipt, questions_to_judges
from openai_migration.gate.comparisons import DEFAULT_MARGIN, Margins
from openai_migration.gate.judges import (
    Body,
    Judges,
    find_judges,
    judge_models,
    judgements_file,
    prompt_tokens,
    read_judgements,
    unanswered,
)
from openai_migration.gate.receipt_page import print_receipt
from openai_migration.gate.recorded import recorded_models, recorded_prompts
from openai_migration.receipts import MigrationReceipt, write_receipt
from shared.counted_nouns import counted
from shared.errors import MensError
from shared.settings import Settings, read_settings
from shared.statistics.paired import Status

app = typer.Typer()
TIMEOUT_SECONDS = 600.0
MAX_JUDGE_REQUESTS = 5000
LEAST_MARGIN, MOST_MARGIN = 0.001, 0.9


class Trained(msgspec.Struct, frozen=True):
    """Fields of ``train/PROJECT/MODEL/BASE.json`` that describe a successor."""

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
            help="Adapter or alias to compare with a tuned model; may be repeated. Default: the successor that `train` trained.",
            default_factory=list,
            show_default=False,
        ),
    ],
    margin: Annotated[
        list[str],
        typer.Option(
            "--margin",
            metavar="[GATE=]LOSS",
            help=f"Largest loss of a mean score that passes, {DEFAULT_MARGIN} by default; a smaller one needs more prompts. "
            "May be repeated for gates by name or pattern: --margin 'eval:*=0.1'.",
            default_factory=list,
            show_default=False,
        ),
    ],
    min_prompts: Annotated[
        int, typer.Option(min=0, help="Gates with fewer prompts are shown but do not count for the verdict.")
    ] = 0,
    judge: Annotated[
        list[str],
        typer.Option(
            "--judge",
            metavar="[MODEL=]NAME",
            help="Model of the installation to use as the judge in place of OpenAI's MODEL, in graders that name it; may be repeated. Default: MODEL, if it is served here.",
            default_factory=list,
            show_default=False,
        ),
    ],
    max_judge_requests: Annotated[
        int,
        typer.Option(min=0, help="Maximum requests to judges per tuned model; the remaining answers stay unscored."),
    ] = MAX_JUDGE_REQUESTS,
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Concurrent requests.")] = 4,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent; send nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", callback=note_json, help="Print the receipts as JSON.")] = False,
) -> None:
    """Compare successors with the tuned models' recorded answers, prompt by prompt, and write a receipt for each model.

    The recorded prompts are sent to the installation (MENS_API_URL, MENS_API_KEY) exactly as they were sent to OpenAI. Answers
    are judged by your own graders if they agree with OpenAI's stored scores, by the labels of validation rows, by similarity, and by
    form: JSON, schemas, tool calls. Graders that use a model call one of the installation (--judge), never the successor itself; the
    number of requests and tokens is shown first. A gate passes if a loss of more than --margin is excluded with 95 % confidence; if
    there are too few prompts to tell, it shows how many are needed.

    You can interrupt it: answered prompts are not sent again. Writes gate/MODEL.json, which `switch` requires. Exit code 0 if
    every model has passed, else 1.
    """
    margins = _margins(margin, min_prompts)
    recorded = {name: project for name, project in recorded_models(archive).items() if not model or name in model}
    if not recorded or set(model) - recorded.keys():
        names = ", ".join(sorted(set(model) - recorded.keys())) or "any model"
        fail(
            f"{archive} has no recorded answers of {names}. Record them before OpenAI switches the model off: `mens migrate openai record`."
        )
    chosen, failures = _candidates(archive, list(recorded), candidate)
    receipts: list[MigrationReceipt] = []
    chosen_judges = {grader_model: name for grader_model, _, name in (text.rpartition("=") for text in judge)}
    for name, named in chosen.items() if dry_run else ():
        _show_dry_run(archive, recorded[name], name, named, max_judge_requests)
    if not dry_run:
        connection, settings = connect(), read_settings(Settings)
        contents = ArchiveContents(archive)
        with Archive(archive), connection.client(TIMEOUT_SECONDS) as client:
            for name, named in chosen.items():
                try:
                    candidate_model = _ask(client, archive, recorded[name], name, named, concurrency)
                    judges = find_judges(client, judge_models(contents, recorded[name]), chosen_judges, candidate_model)
                    judges = _ask_judges(
                        client, contents, recorded[name], name, candidate_model, judges, max_judge_requests, concurrency
                    )
                    receipt = make_receipt(
                        contents,
                        recorded[name],
                        name,
                        candidate_model,
                        connection.url,
                        margins,
                        settings.sandbox,
                        judges,
                    )
                    write_receipt(archive, receipt)
                    receipts.append(receipt)
                except MensError as error:
                    failures.append(f"{name}: {error}")
        _show_all(archive, receipts, as_json=as_json)
        _note_unused(margins, receipts)
    for failure in failures:
        note(f"error: {failure}")
    if failures or any(receipt.verdict is not Status.PASSED for receipt in receipts):
        raise typer.Exit(1)
    if not dry_run:
        note(f"next: `mens migrate openai switch {archive}`")


def _margins(options: list[str], min_prompts: int) -> Margins:
    """Parse the margins of gates from ``LOSS`` and ``GATE=LOSS``; an invalid one ends the command."""
    default, by_gate = DEFAULT_MARGIN, dict[str, float]()
    for text in options:
        gate, _, loss = text.rpartition("=")
        try:
            value = float(loss)
        except ValueError:
            value = 0.0
        if not LEAST_MARGIN <= value <= MOST_MARGIN:
            raise typer.BadParameter(
                f"{text!r} is not LOSS or GATE=LOSS, with a loss from {LEAST_MARGIN} to {MOST_MARGIN}.",
                param_hint="--margin",
            )
        if gate:
            by_gate[gate] = value
        else:
            default = value
    return Margins(default, by_gate, min_prompts)


def _note_unused(margins: Margins, receipts: list[MigrationReceipt]) -> None:
    """Report the margins that match no gate: a mistyped name would otherwise go unnoticed."""
    names = sorted({gate.name for receipt in receipts for gate in receipt.gates})
    for pattern in margins.by_gate if names else ():
        if not any(fnmatchcase(name, pattern) for name in names):
            note(f"--margin {pattern}=…: no gate has this name; the gates are {', '.join(names)}")


def _candidates(archive: Path, models: list[str], options: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the candidate of each model, and why some have none."""
    named = {tuned: name for tuned, _, name in (text.rpartition("=") for text in options)}
    if unknown := sorted(named.keys() - {"", *models}):
        fail(
            f"--candidate names {', '.join(unknown)}, which has no recorded answers. Models with recorded answers: {', '.join(models)}."
        )
    if "" in named and len(models) != 1:
        fail(
            f"--candidate NAME needs exactly one tuned model, and {len(models)} are compared. Give each one its own: --candidate 'TUNED=NAME'."
        )
    candidates, failures = {}, []
    for model in models:
        trained = sorted(_trained(archive, model))
        if name := named.get(model) or named.get(""):
            candidates[model] = name
        elif len(trained) == 1:
            candidates[model] = trained[0]
        else:
            several = f"several successors were trained, {', '.join(trained)}" if trained else "no successor is known"
            failures.append(f"{model}: {several}; name one: --candidate '{model}=NAME'")
    return candidates, failures


def _trained(archive: Path, model: str) -> set[str]:
    paths = (archive / "train").glob(f"*/{safe_name(model)}/*.json")
    adapters = (msgspec.json.decode(path.read_bytes(), type=Trained).adapter for path in paths)
    return {adapter for adapter in adapters if adapter}


def _show_dry_run(archive: Path, project: str, model: str, named: str, max_judge_requests: int) -> None:
    prompts = recorded_prompts(archive, project, model)
    left, kept = len(pending(archive, model, prompts, Candidate(named, named))), len(read_answers(archive, model))
    # An alias's target is known only when it answers, and then its adapter's answers count.
    at_most = "" if "@" in named else "at most "
    typer.echo(
        f"{model}: {at_most}{left} of {counted(len(prompts), 'recorded prompt')} would be sent to {named}; "
        f"{counted(kept, 'answer')} of earlier runs kept, and prompts that {named} has answered are not sent again"
    )
    contents = ArchiveContents(archive)
    if names := judge_models(contents, project):
        questions = questions_to_judges(contents, project, model, None, Judges(""), read_settings(Settings).sandbox)
        typer.echo(f"  judges ({', '.join(names)}): {_cost(questions[:max_judge_requests])}")


def _ask(client: httpx.Client, archive: Path, project: str, model: str, name: str, concurrency: int) -> Candidate:
    """Send the prompts that have no answer yet; return the model that a candidate's name currently refers to."""
    candidate = resolve(client, name)
    bodies = pending(archive, model, recorded_prompts(archive, project, model), candidate)
    if bodies:
        note(f"{model}: {counted(len(bodies), 'prompt')} to {candidate.served}")
    _send(client, archive, answers_file(model), bodies, model, concurrency)
    return candidate


def _ask_judges(
    client: httpx.Client,
    contents: ArchiveContents,
    project: str,
    model: str,
    candidate: Candidate,
    judges: Judges,
    most: int,
    concurrency: int,
) -> Judges:
    """Send the judges the questions that they have not answered yet, within the bound; return the judges with all their
    answers.
    """
    if not judges.served:
        return judges
    stored = read_judgements(contents.folder, model)
    sandbox = read_settings(Settings).sandbox
    bodies = unanswered(questions_to_judges(contents, project, model, candidate, judges, sandbox), stored)
    if bodies[:most]:
        note(f"{model}: judges ({', '.join(sorted(set(judges.served.values())))}): {_cost(bodies[:most])}")
    if left := len(bodies[most:]):
        note(f"{model}: left out and unscored: {counted(left, 'judgement')} (--max-judge-requests)")
    _send(client, contents.folder, judgements_file(model), bodies[:most], f"judges of {model}", concurrency)
    return replace(judges, stored=read_judgements(contents.folder, model))


def _cost(bodies: list[Body]) -> str:
    answers = sum(int(body["max_completion_tokens"]) for body in bodies)
    return f"{counted(len(bodies), 'request')}, about {prompt_tokens(bodies):,} prompt tokens, at most {answers:,} answer tokens"


def _send(client: httpx.Client, archive: Path, file: str, bodies: list[Body], label: str, concurrency: int) -> None:
    """Send requests, with a progress bar."""
    console = plain_console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=len(bodies))
        ask(client, archive, file, bodies, concurrency=concurrency, advance=lambda: bar.advance(task))


def _show_all(archive: Path, receipts: list[MigrationReceipt], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(receipts), indent=2))
        return
    for receipt in receipts:
        print_receipt(archive, receipt)
