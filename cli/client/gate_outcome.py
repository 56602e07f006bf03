"""Describes on a terminal the gates and the alias in a job's result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cli.client.remedies import to_cli_remedy
from shared.errors import Code
from shared.gate_outcome import GateStatus, overall_outcome

ALIAS_NOT_MOVED = 3
"""Exit code of a command whose job succeeded but whose alias was not moved."""
REFUSALS = (Code.GATE_MISSING, Code.GATE_STALE, Code.GATE_FAILED)


def describe_gates(result: Mapping[str, Any]) -> Iterator[str]:
    """Describe each gate that judged a job's adapter, and the outcome for the alias; empty for a job without gates."""
    if receipt := result.get("receipt"):
        yield f"receipt  {receipt['id']}: {overall_outcome(receipt['passed'], receipt['gates']).word}"
        for row in receipt["gates"]:
            effect = "" if row["block"] else " (only warns)"
            yield f"  {row['name']}  {GateStatus(row['status']).word}{effect}: {row['message']}"
    alias = result.get("alias")
    if alias and alias["moved"]:
        yield f"alias    {alias['name']} points to it"
    elif alias:
        error = alias["error"]
        remedy = to_cli_remedy({"param": error.get("param"), "mens": error})
        # The failures are listed above, gate by gate.
        why = "" if receipt and error["code"] == Code.GATE_FAILED else f" {error['message']}"
        yield f"alias    {alias['name']} was not moved: {error['code']}.{why} {remedy}"


def keeps_alias(result: Mapping[str, Any]) -> bool:
    """Return whether a job's alias was not moved."""
    return not (result.get("alias") or {"moved": True})["moved"]


def is_of_gates(event: Mapping[str, Any]) -> bool:
    """Return whether an event reports a gate, or an alias that was not moved: the job's result reports the same."""
    data = event.get("data") or {}
    return "gate" in data or (data.get("error") or {}).get("code") in REFUSALS
