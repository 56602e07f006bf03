"""A comparison's receipt on a terminal: the measurements, their basis, and the next step."""

from __future__ import annotations

from pathlib import Path

import typer

from cli.client.connection import note
from cli.output import print_table
from openai_migration.receipts import LARGE_MARGIN, MigrationGate, MigrationReceipt, receipt_file
from shared.statistics.paired import Status


def print_receipt(archive: Path, receipt: MigrationReceipt) -> None:
    """Print a receipt that was written into an archive."""
    counts = receipt.counts
    typer.echo(f"{receipt.foreign_model} → {receipt.mens_model}: {receipt.verdict}{_because(receipt.reason)}")
    refused = ", ".join(f"{count} {code}" for code, count in counts.refused.items())
    typer.echo(f"  {counts.answered} of {counts.recorded} recorded prompts were answered{_because(refused)}")
    if not counts.nothing_measured:
        for code, reason in counts.reasons.items():
            typer.echo(f"    {code}; reason of the first: {reason}")
    if counts.unbounded:
        typer.echo(f"  {counts.unbounded} without the recorded token limit, which exceeds the model's context")
    for check in receipt.graders:
        unscored = f", {check.unscored} unscored" if check.unscored else ""
        why = check.refused or ("agrees" if check.may_block else "may not block")
        typer.echo(
            f"  {check.name}: {check.agreeing} of {check.compared} of OpenAI's stored scores agree{unscored}: {why}"
        )
        for difference in check.differences:
            typer.echo(f"    {difference['item']}: {difference['stored']} at OpenAI, {difference['here']} here")
    columns = ("gate", "status", "old", "new", "value", "interval", "bound", "prompts", "needed", "visible", "why")
    if receipt.gates:
        print_table(columns, [_row(gate) for gate in receipt.gates], header=True)
    if advice := _advice(receipt):
        note(advice)
    note(f"written to {archive / receipt_file(receipt.foreign_model)}")


def _advice(receipt: MigrationReceipt) -> str:
    """Return the next step, or a limitation of the verdict."""
    if receipt.counts.nothing_measured:
        return "fix the causes of the refusals on the installation, or choose another --candidate, and run `gate` again"
    if receipt.verdict is Status.MISSING_EVIDENCE:
        return (
            "to decide it, record more prompts, or allow a larger loss with --margin (for a single gate: --margin "
            "GATE=LOSS); --min-prompts leaves out gates with few prompts; each gate shows how many prompts it lacks"
        )
    if receipt.verdict is Status.FAILED:
        return (
            "to train it better: `plan --bases` with a larger base, or more epochs in plans/; then `train` and "
            "`gate` again"
        )
    if receipt.largest_margin > LARGE_MARGIN:
        return (
            f"a margin of {receipt.largest_margin:g} proves little: the gate passes even if the mean score drops by "
            "this much"
        )
    return ""


def _row(gate: MigrationGate) -> tuple[str, ...]:
    # Without an old score it is a share, not a difference.
    form = "+.3f" if gate.old is not None else ".3f"
    interval = " … ".join(format(end, form) for end in gate.interval or ())
    state = str(gate.status) if gate.block else f"({gate.status})"
    needed = "" if gate.items_needed is None else str(gate.items_needed)
    numbers = [_number(value) for value in (gate.old, gate.new, gate.value)]
    bound, visible = _number(gate.bound), _number(gate.smallest_visible)
    return (gate.name, state, *numbers, interval, bound, str(gate.items), needed, visible, gate.reason)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""
