"""``mens eval suites``: installs lm-evaluation-harness and runs its benchmarks against models of an installation."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from cli.client.connection import connect, fail, fail_with, note
from cli.client.id_prefixes import resolve_adapter_id
from cli.client.json_errors import Json
from cli.client.start_command import note_base
from cli.evaluation.comparison_table import COLUMNS, cells, notes
from cli.evaluation.comparison_table import as_json as comparison_as_json
from cli.evaluation.served_models import base_of
from cli.evaluation.suites.environment import LOCK, environment_folder, install, python_of
from cli.evaluation.suites.harness import SuiteRun, command, environment, run_suite
from cli.evaluation.suites.samples import Metric, SuiteScores, paired, read_scores
from cli.output import plain_console, print_table
from shared.base_models.catalog import load_catalog
from shared.base_models.config import parse_model_config
from shared.errors import MensError
from shared.settings import Settings, read_settings
from shared.statistics.paired import Comparison, compare

app = typer.Typer(
    no_args_is_help=True,
    help="Suites: benchmarks of lm-evaluation-harness, and your own tasks in its format, against served models.\n\n"
    "The harness is a separate program. `install` puts it into its own environment; `run` starts it on this machine, "
    "as a "
    "client of the installation with your key.",
)
errors = plain_console(stderr=True)
LockFile = Annotated[Path, typer.Option("--lock", help="Lock file with the packages to install.")]


@app.command("install")
def install_harness(lock: LockFile = LOCK) -> None:
    """Install lm-evaluation-harness once, at the versions of the lock file, into `suites/` of MENS_HOME (about 200 MB)."""
    try:
        folder = environment_folder(read_settings(Settings).home, lock)
        note(f"installing lm-evaluation-harness into {folder}")
        install(folder, lock)
    except MensError as error:
        fail_with(error)
    typer.echo(folder)


@app.command("run")
def run(
    tasks: Annotated[
        list[str], typer.Argument(help="Names of tasks or groups, e.g. capitals, or arc_easy with --online.")
    ],
    model: Annotated[str, typer.Option(callback=note_base, help="Model to evaluate: a base, an adapter or an alias.")],
    against: Annotated[
        str | None, typer.Option(help="Second model to compare with on the same items: is MODEL worse?")
    ] = None,
    tasks_folder: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Folder with your own YAML tasks and their data."),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="The base's folder. Default: from this machine's catalogue."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="New or empty folder that keeps items, answers, pairs and logs."),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the base's chat template to prompts.")] = False,
    shots: Annotated[
        int | None, typer.Option(min=0, help="Number of examples before each question. Default: the task's.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only this many items of each task.")] = None,
    margin: Annotated[
        float, typer.Option(min=0.001, max=1, help="Largest loss of MODEL's mean score that still counts as not worse.")
    ] = 0.03,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=2, help="Tokens of prompt and answer together. Default: the context in the base's config.json."
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Concurrent requests.")] = 8,
    online: Annotated[
        bool, typer.Option("--online", help="Allow tasks to be downloaded from Hugging Face's hub.")
    ] = False,
    lock: LockFile = LOCK,
    as_json_: Json = False,
) -> None:
    """Run benchmark tasks; with --against, compare two models item by item.

    A task of your own is a YAML file in lm-evaluation-harness' format with `dataset_path: json` and its data files in the same
    folder. Nothing is fetched without --online. A task may name Python code (`!function`), which runs here, as you: read it first.

    The exit code is 1 if MODEL is worse, or if there are too few items to tell.
    """
    if os.environ.get("MENS_TENANT"):
        fail("suites act for their key's own tenant: unset MENS_TENANT, or use a key of that tenant.")
    settings, connection = read_settings(Settings), connect()
    models = [resolve_adapter_id(name) for name in ([model] if against is None else [against, model])]
    bases = {base_of(name) for name in models}
    try:
        python = python_of(environment_folder(settings.home, lock))
        folder = tokenizer or _base_folder(settings, bases)
        suite = SuiteRun(
            tasks=tasks,
            folder=tasks_folder,
            tokenizer=folder,
            max_length=max_length or _max_length(folder),
            chat=chat,
            shots=shots,
            limit=limit,
            concurrency=concurrency,
            online=online,
        )
        kept = output or _new_folder(settings.home / "suites" / "runs")
        if kept.exists() and any(kept.iterdir()):
            fail(f"{kept} is not empty; give another folder with --output.")
        scores = []
        for number, name in enumerate(models):
            into = kept / f"model-{number}"
            line = command(python, suite, name, connection.url, into)
            variables = environment(connection.key, settings.home / "suites" / "cache", online=online)
            with _Bar(name) as bar:
                run_suite(line, variables, into, tasks_folder, bar.show)
            scores.append(read_scores(into))
        if against is None:
            _show_one(scores[0], kept, as_json=as_json_)
        else:
            _show_two(scores[0], scores[1], models, margin, kept, as_json=as_json_)
    except MensError as error:
        fail_with(error)


def _base_folder(settings: Settings, bases: set[str]) -> Path:
    from shared.base_models.hub import locate  # the hub's client is slow to import

    if len(bases) > 1:
        fail(
            f"the models have different bases ({', '.join(sorted(bases))}), so their tokens may differ; give "
            "--tokenizer."
        )
    catalog = load_catalog(settings.catalog_path)
    (base,) = bases
    if base not in {entry.name for entry in catalog.bases}:
        fail(
            f"the base {base} is not in this machine's catalogue: give its folder, or a folder with its tokenizer, "
            "with --tokenizer."
        )
    return locate(catalog.get(base), settings.catalog_path)


def _max_length(folder: Path) -> int:
    """Return the base's positions, or 2,048 if unknown, as in the harness itself."""
    try:
        return parse_model_config(json.loads((folder / "config.json").read_bytes())).max_positions or 2048
    except (MensError, OSError, ValueError):
        return 2048


def _new_folder(runs: Path) -> Path:
    number = 1 + max((int(path.name) for path in runs.glob("[0-9]*") if path.name.isdecimal()), default=0)
    folder = runs / f"{number:04}"
    folder.mkdir(parents=True)
    return folder


class _Bar:
    """Shows answered requests on a terminal; elsewhere prints one line at the beginning."""

    def __init__(self, model: str) -> None:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(*columns, console=errors, disable=not errors.is_terminal)
        self._task = self._bar.add_task(model, total=None)
        self._model = model

    def __enter__(self) -> _Bar:
        if self._bar.disable:
            note(f"asking {self._model}")
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)


def _show_one(scores: SuiteScores, kept: Path, *, as_json: bool) -> None:
    metrics = sorted(scores.totals)
    if as_json:
        figures = [_metric_json(metric) | {"value": scores.totals[metric]} for metric in metrics]
        typer.echo(json.dumps({"metrics": figures, "output": str(kept)}, indent=2))
        return
    rows = [
        (
            metric.task,
            metric.name,
            metric.filter,
            str(len(scores.by_metric.get(metric, ()))),
            f"{scores.totals[metric]:.4f}",
        )
        for metric in metrics
    ]
    print_table(("task", "metric", "filter", "items", "value"), rows, header=True)
    note(f"items and answers are in {kept}; --against MODEL compares two models item by item")


def _show_two(
    old: SuiteScores, new: SuiteScores, models: Sequence[str], margin: float, kept: Path, *, as_json: bool
) -> NoReturn:
    by_metric: dict[Metric, Comparison] = {}
    with (kept / "pairs.jsonl").open("w", encoding="utf-8") as file:
        for metric, pairs in paired(old, new):
            by_metric[metric] = compare([before for _, before, _ in pairs], [after for _, _, after in pairs], margin)
            for key, before, after in pairs:
                item = old.items[metric.task, key]["doc"]
                line = _metric_json(metric) | {"doc_id": key[0], "item": item, "old": before, "new": after}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
    left_out = old.left_out | new.left_out
    if as_json:
        printed = {
            "old": models[0],
            "new": models[1],
            "comparisons": [
                _metric_json(metric) | comparison_as_json(comparison) for metric, comparison in by_metric.items()
            ],
            "left_out": [_metric_json(metric) | {"reason": reason} for metric, reason in sorted(left_out.items())],
            "output": str(kept),
        }
        typer.echo(json.dumps(printed, indent=2))
    else:
        print_table(
            ("task", "metric", *COLUMNS),
            [(m.task, _name(m), *cells(comparison)) for m, comparison in by_metric.items()],
            header=True,
        )
        for text in notes({f"{m.task} {_name(m)}": comparison for m, comparison in by_metric.items()}, margin):
            note(text)
        for metric, reason in sorted(left_out.items()):
            note(f"{metric.task} {_name(metric)} is not compared: {reason}")
        note(f"old is {models[0]}, new is {models[1]}; every pair is in {kept / 'pairs.jsonl'}")
    is_shown = bool(by_metric) and all(comparison.status == "passed" for comparison in by_metric.values())
    raise typer.Exit(0 if is_shown else 1)


def _name(metric: Metric) -> str:
    return metric.name if metric.filter == "none" else f"{metric.name} ({metric.filter})"


def _metric_json(metric: Metric) -> dict[str, Any]:
    return {"task": metric.task, "filter": metric.filter, "metric": metric.name}
