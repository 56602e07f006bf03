"""A run on a terminal: passed and failed items and by how much, the smallest visible difference, and the worst items
with their answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from cli.evaluation.comparison_table import COLUMNS, cells, notes, wins_line
from cli.evaluation.run_items import (
    OutputItem,
    PairedItems,
    answer,
    errors,
    incumbent,
    lost,
    question,
    scores,
    worst,
)
from cli.output import on_one_line, print_table
from shared.counted_nouns import counted
from shared.statistics.clustered import clustered_rate_interval
from shared.statistics.exact import wilson_interval

SHOWN_ITEMS = 5


def print_run(run: Mapping[str, Any], items: Sequence[OutputItem], shown: int = SHOWN_ITEMS) -> None:
    """Print one model's run: a rate for each criterion with its interval, errors, the worst items."""
    counts = run["result_counts"]
    typer.echo(
        f"{run['model'] or 'answers of the rows'}: {counts['passed']} of {counts['total']} passed, "
        f"{counts['failed']} failed, "
        f"{counts['errored']} could not be judged"
    )
    rows = []
    for criterion in run["per_testing_criteria_results"]:
        passed, judged = criterion["passed"], criterion["passed"] + criterion["failed"]
        rate = f"{passed / judged:.3f}" if judged else ""
        name = criterion["testing_criteria"]
        interval = _interval(items, name, passed, judged) if judged else ""
        item_scores = [scores(item)[name] for item in items if name in scores(item)]
        mean = f"{sum(item_scores) / len(item_scores):.3f}" if item_scores else ""
        rows.append((name, str(passed), str(criterion["failed"]), rate, interval, mean))
    print_table(("criterion", "passed", "failed", "rate", "95 %", "mean score"), rows, header=True)
    _print_problems(Counter(error for item in items for error in errors(item)))
    failed = worst(items)
    for item in failed[:shown]:
        _print_item(item)
    if len(failed) > shown:
        typer.echo(f"{len(failed) - shown} more did not pass; `mens eval export {run['id']}` has all items")


def print_comparison(
    old: str,
    new: str,
    pairs: PairedItems,
    margin: float,
    shown: int = SHOWN_ITEMS,
    noise_floors: Mapping[str, float | None] | None = None,
) -> bool:
    """Print a comparison; return whether the new model is shown to be not worse by every criterion."""
    comparisons = pairs.comparisons(margin)
    typer.echo(f"new: {new}, old: {old}; compared on the same items, pair by pair")
    rows = [(name, *cells(comparison)) for name, comparison in comparisons.items()]
    print_table(("criterion", *COLUMNS), rows, header=True)
    for line in filter(None, (wins_line(name, wins) for name, wins in pairs.win_rates().items())):
        typer.echo(line)
    for line in notes(comparisons, margin, noise_floors):
        typer.echo(line)
    for name, scored in pairs.by_criterion.items():
        if any(not 0 <= score <= 1 for pair in scored for score in (pair.old, pair.new)):
            typer.echo(f"{name} has scores outside 0 to 1; they are rescaled for the comparison")
    if pairs.unpaired:
        typer.echo(
            f"not compared: {counted(pairs.unpaired, 'item')} that only one model has, or that could not be judged"
        )
    _print_problems(pairs.problems)
    losses = lost(pairs)
    for pair in losses[:shown]:
        typer.echo(f"\nitem {pair.item['datasource_item_id']}  {pair.criterion} {pair.old:.3f} → {pair.new:.3f}")
        _print_texts(pair.item)
    if len(losses) > shown:
        typer.echo(f"new is worse on {len(losses) - shown} more")
    if not losses and shown:
        _print_wrong(pairs)
    return bool(comparisons) and all(comparison.status == "passed" for comparison in comparisons.values())


def _print_problems(problems: Counter[str]) -> None:
    for error, count in problems.most_common(SHOWN_ITEMS):
        typer.echo(f"{count} could not be judged: {on_one_line(error)}")


def _interval(items: Sequence[OutputItem], criterion: str, passed: int, judged: int) -> str:
    """Return the interval of a criterion's rate: several answers to an item are not counted as independent."""
    judgements = [
        (result["passed"], item["datasource_item_id"])
        for item in items
        for result in item["results"]
        if result["name"] == criterion and criterion in scores(item)
    ]
    if len(judgements) == judged:
        ends = clustered_rate_interval([passes for passes, _ in judgements], [group for _, group in judgements])
    else:  # not every item was read
        ends = wilson_interval(passed, judged)
    return f"{ends[0]:.3f} … {ends[1]:.3f}"


def _print_wrong(pairs: PairedItems) -> None:
    """Print a wrong answer of the new model to an item on which the old one is not better: a rate does not show what is
    wrong.
    """
    items = {id(pair.item): pair.item for of_criterion in pairs.by_criterion.values() for pair in of_criterion}
    if failed := worst(items.values()):
        typer.echo(f"\nnew is not worse on any item; {counted(len(failed), 'answer')} of it did not pass, such as")
        _print_item(failed[0])


def _print_item(item: OutputItem) -> None:
    item_scores = "  ".join(f"{name} {score:.3f}" for name, score in scores(item).items())
    typer.echo(f"\nitem {item['datasource_item_id']}  {item['status']}  {item_scores}".rstrip())
    _print_texts(item)


def _print_texts(item: OutputItem) -> None:
    typer.echo(f"  question  {on_one_line(question(item))}")
    if isinstance(expected := item["datasource_item"].get("expected"), str):
        typer.echo(f"  expected  {on_one_line(expected)}")
    typer.echo(f"  answer    {on_one_line(answer(item))}")
    if second := incumbent(item):
        typer.echo(f"  old       {on_one_line(answer(second))}")
