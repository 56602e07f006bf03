"""``mens eval run, show, list, compare, cancel``."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from cli.client.connection import fail, fail_with, note
from cli.client.id_prefixes import resolve_adapter_id
from cli.client.job_progress import PlainProgress
from cli.client.json_errors import Json, wants_json
from cli.client.start_command import note_base
from cli.evaluation import runs as api
from cli.evaluation.checks import read_grader, to_criterion
from cli.evaluation.comparison_table import as_json as comparison_as_json
from cli.evaluation.eval_file import EvalFile, read
from cli.evaluation.run_items import PairedItems, pairs_between, pairs_within
from cli.evaluation.run_page import SHOWN_ITEMS, print_comparison, print_run
from cli.evaluation.served_models import base_of
from cli.options import existing_file
from cli.output import format_minute, plain_console, print_table
from shared.counted_nouns import counted
from shared.errors import MensError

ENDED = ("completed", "failed", "canceled")
POLL_SECONDS = 0.5
DEFAULT_MAX_TOKENS = 512
errors = plain_console(stderr=True)
RunId = Annotated[str, typer.Argument(help="Id of a run, from `mens eval list`, or any unique part of it.")]
Shown = Annotated[int, typer.Option("--worst", min=0, help="Number of the worst items to show.")]
Margin = Annotated[
    float, typer.Option(min=0.001, max=1, help="Largest loss of the mean score that still counts as not worse.")
]


def run(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="JSONL with `messages` and `expected`, or an eval file.")
    ],
    model: Annotated[
        str,
        typer.Option(
            callback=note_base, help="Model to evaluate: a base, an adapter's id or the beginning of it, or an alias."
        ),
    ],
    against: Annotated[
        str | None, typer.Option(help="Second model to compare with on the same items: is MODEL worse?")
    ] = None,
    check: Annotated[
        list[str] | None, typer.Option(help="Check to judge answers with, from the list above; may be repeated.")
    ] = None,
    grader: Annotated[
        list[Path] | None,
        existing_file("JSON file with one grader in OpenAI's form, or a list of them."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=2, help="Sampling temperature. Default: the eval file's, otherwise 0.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Maximum tokens of an answer. Default: the eval file's, otherwise {DEFAULT_MAX_TOKENS}."
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, max=64, help="Answers per item; more than one needs --temperature.")
    ] = 1,
    noise_floor: Annotated[
        bool,
        typer.Option(
            "--noise-floor", help="With --against: run that model twice, to measure how far it differs from itself."
        ),
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only this many items, from the first.")] = None,
    margin: Margin = 0.03,
    worst: Shown = SHOWN_ITEMS,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Start without confirmation.")] = False,
    watch: Annotated[bool, typer.Option(help="Wait until the run ends. --no-watch prints its id.")] = True,
    as_json: Json = False,
) -> None:
    """Evaluate a model on rows, and compare it with another one, item by item.

    A row is a line of JSON: `{"messages": [{"role": "user", "content": "2 + 2?"}], "expected": "4"}`. Training rows need no
    change: their last answer is the expected one. Choose graders with --check (default: exact, if rows have `expected`), with --grader,
    or in an eval file (YAML: testing_criteria, items or data, input_messages, sampling_params).

    Checks:

      exact, contains, icontains   the answer is `expected`, or contains it

      regex=PATTERN                the expression is found in the answer

      json, json_schema=FILE       the answer is valid JSON; it matches the schema

      rouge_l=0.5, bleu=0.3, …     the similarity to `expected` is at least this; also fuzzy_match, gleu, meteor, rouge_1 to rouge_5

      compiles=python, anti_stub=python   the answer's code compiles; it is not a stub

      judge=MODEL                  a served model compares answer and `expected`

      better=MODEL                 with --against: a served model says which of the two answers is better

    Prints the number of requests and asks for confirmation first. Interrupting the command does not stop the run.

    The exit code is 1 if the run fails. With --against it is also 1 if the run does not show that MODEL is not worse.

    Examples:

      mens eval run questions.jsonl --model support --check exact

      mens eval run questions.jsonl --model support@2… --against support --check json_schema=answer.json --check rouge_l=0.4
    """
    try:
        evaluation = _with_options(read(file), check, grader, temperature, max_tokens, limit)
    except MensError as error:
        fail_with(error)
    if samples > 1 and not evaluation.sampling.get("temperature"):
        fail("at temperature 0 all answers to an item are the same; use --temperature with --samples.")
    if noise_floor and not against:
        fail("--noise-floor needs --against: it runs that model twice.")
    model, against = resolve_adapter_id(model), against and resolve_adapter_id(against)
    for name in filter(None, (model, against)):
        base_of(name)
    request = api.RunRequest(evaluation, model, against, samples, margin, noise_floor)
    note(_cost(request))
    if not yes:
        if wants_json() or not sys.stdin.isatty():
            fail("use --yes to start without confirmation.")
        typer.confirm("Begin?", abort=True, err=True)
    begun = api.create(request)
    note(f"run {begun['id']}")
    if not watch:
        typer.echo(json.dumps(begun, indent=2) if as_json else begun["id"])
        return
    try:
        ended = _follow(begun, request)
    except KeyboardInterrupt:
        note(f"the run continues: `mens eval show {begun['id']}`, `mens eval cancel {begun['id']}`")
        raise typer.Exit(130) from None
    _print(ended, margin, worst, as_json=as_json)


def show(
    run_id: RunId,
    worst: Shown = SHOWN_ITEMS,
    as_json: Json = False,
) -> None:
    """Show a run: what passed, what failed and by how much, the smallest difference that its items can detect, and the worst items."""
    _print(api.find_run(run_id), None, worst, as_json=as_json)


def list_runs(
    limit: Annotated[int, typer.Option(min=1, help="Number of evals to show.")] = 20, as_json: Json = False
) -> None:
    """Show the newest evals with their runs."""
    runs = [run for _, evaluation in zip(range(limit), api.evals(), strict=False) for run in api.runs(evaluation["id"])]
    if as_json:
        typer.echo(json.dumps(runs, indent=2))
        return
    rows = []
    for run in runs:
        counts, against = run["result_counts"], api.second_model(run) or ""
        passed = f"{counts['passed']} of {counts['total']}"
        rows.append(
            (
                run["id"],
                run["name"],
                run["status"],
                run["model"] or "",
                against,
                passed,
                format_minute(run["created_at"]),
            )
        )
    print_table(("run", "eval", "state", "model", "against", "passed", "when (UTC)"), rows)


def compare(
    old: Annotated[str, typer.Argument(help="Id of the old model's run.")],
    new: Annotated[str, typer.Argument(help="Id of the new model's run.")],
    margin: Margin = 0.03,
    worst: Shown = SHOWN_ITEMS,
    as_json: Json = False,
) -> None:
    """Compare two runs of the same items, pair by pair. The exit code is 1 unless the new model is shown to be not worse."""
    before, after = api.find_run(old), api.find_run(new)
    try:
        pairs = pairs_between(api.output_items(before), api.output_items(after))
    except MensError as error:
        fail_with(error)
    is_whole = all([_is_whole(before), _is_whole(after)])
    _end_with(pairs, before["model"], after["model"], margin, worst, as_json=as_json, is_whole=is_whole)


def cancel(run_id: RunId) -> None:
    """Cancel a run; its answers so far are kept."""
    ended = api.cancel(api.find_run(run_id))
    typer.echo(f"{ended['id']} {ended['status']}")


# -- before a run -------------------------------------------------------------------------------------------------------


def _with_options(
    file: EvalFile,
    checks: Sequence[str] | None,
    graders: Sequence[Path] | None,
    temperature: float | None,
    max_tokens: int | None,
    limit: int | None,
) -> EvalFile:
    """Return the eval file with the options of the command line added."""
    criteria = [*file.criteria, *map(to_criterion, checks or ())]
    criteria += [grader for path in graders or () for grader in read_grader(path)]
    items = file.items[:limit]
    if not criteria:
        lacking = [number for number, item in enumerate(items, 1) if not isinstance(item.get("expected"), str)]
        if lacking:
            fail(f"choose a grader with --check or --grader: row {lacking[0]} has no `expected` to compare with.")
        criteria = [to_criterion("exact")]
    defaults: dict[str, Any] = {"temperature": 0.0, "max_completion_tokens": DEFAULT_MAX_TOKENS}
    options = {"temperature": temperature, "max_completion_tokens": max_tokens}
    sampling = defaults | dict(file.sampling) | {name: value for name, value in options.items() if value is not None}
    return dataclasses.replace(file, items=items, criteria=criteria, sampling=sampling)


def _cost(request: api.RunRequest) -> str:
    """Describe a run's cost in one sentence."""
    answers = len(request.file.items) * request.samples * request.answers_to_each
    judges = request.requests - answers
    phrases = [f"{counted(len(request.file.items), 'item')}, {counted(answers, 'answer')}"]
    phrases += (
        [f"{judges} of them judged by models" if judges == answers else f"{counted(judges, 'request')} to judges"]
        if judges
        else []
    )
    tokens = api.prompt_tokens(request)
    prompt = f"about {tokens * answers:,.0f} prompt tokens and " if tokens is not None else ""
    most = answers * int(request.file.sampling["max_completion_tokens"])
    return f"{', '.join(phrases)}: {prompt}at most {most:,} tokens of answers"


# -- during and after a run ---------------------------------------------------------------------------------------------


def _follow(begun: dict[str, Any], request: api.RunRequest) -> dict[str, Any]:
    """Return the run once it has ended; requests are repeated while an API restarts."""
    total = len(request.file.items) * request.samples
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    run, lines = begun, PlainProgress(errors)
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as bar:
        task = bar.add_task(begun["status"], total=total)
        while run["status"] not in ENDED:
            time.sleep(POLL_SECONDS)
            run = api.poll(run)
            done = run["result_counts"]["total"]
            bar.update(task, description=run["status"], completed=done)
            if bar.disable:
                lines.show(run["status"], f"{done} of {counted(total, 'answer')}")
    return run


def _print(run: dict[str, Any], margin: float | None, worst: int, *, as_json: bool) -> None:
    """Print a run's page; end the command with 1 if the run failed, or its model is not shown to be not worse."""
    if run["status"] == "failed":
        error = run["error"] or {}
        fail(f"{run['id']} failed: {error.get('code')}: {error.get('message')}", error or None)
    is_whole = _is_whole(run)
    note(f"eval {run['eval_id']}, rows {run['mens']['items_file']}: set both in a policy's run")
    items = list(api.output_items(run))
    pairs = pairs_within(items)
    second = api.second_model(run)
    if second is None:
        if as_json:
            typer.echo(json.dumps(run, indent=2))
        else:
            print_run(run, items, worst)
        return
    bound = float(run["mens"]["margin"]) if margin is None else margin
    floors = {name: comparison.get("noise_floor") for name, comparison in run["mens"]["comparisons"].items()}
    _end_with(pairs, second, str(run["model"]), bound, worst, floors, as_json=as_json, is_whole=is_whole)


def _is_whole(run: dict[str, Any]) -> bool:
    """Return whether a run has all its items; print a note if it has not."""
    if run["status"] == "completed":
        return True
    note(f"{run['id']} is {run['status']}: only the items judged so far are shown")
    return False


def _end_with(
    pairs: PairedItems,
    old: str,
    new: str,
    margin: float,
    worst: int,
    noise_floors: Mapping[str, float | None] | None = None,
    *,
    as_json: bool,
    is_whole: bool,
) -> None:
    if as_json:
        by_criterion = pairs.comparisons(margin)
        floors = noise_floors or {}
        wins = pairs.win_rates()
        comparisons = {
            name: comparison_as_json(comparison, wins[name]) | {"noise_floor": floors.get(name)}
            for name, comparison in by_criterion.items()
        }
        printed = {"old": old, "new": new, "margin": margin, "unpaired": pairs.unpaired, "comparisons": comparisons}
        typer.echo(json.dumps(printed, indent=2))
        is_shown = bool(by_criterion) and all(comparison.status == "passed" for comparison in by_criterion.values())
    else:
        is_shown = print_comparison(old, new, pairs, margin, worst, noise_floors)
    raise typer.Exit(0 if is_shown and is_whole else 1)
