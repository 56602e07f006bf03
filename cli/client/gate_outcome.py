"""What a job's result says of gates and of its alias, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cli.client.remedies import to_cli_remedy

WORDS = {"passed": "passed", "failed": "FAILED", "missing_evidence": "no evidence", "not_applicable": "not applicable"}


def describe_gates(result: dict[str, Any]) -> Iterator[str]:
    """Each gate that judged a job's adapter, and what became of the alias; nothing for a job that none did."""
    if receipt := result.get("receipt"):
        yield f"receipt  {receipt['id']}: {'passed' if receipt['passed'] else 'FAILED'}"
        for row in receipt["gates"]:
            effect = "" if row["block"] else " (only warns)"
            needed = f"; {row['items_needed']} items would decide" if row.get("items_needed") else ""
            yield f"  {row['name']}  {WORDS[row['status']]}{effect}: {row['message']}{needed}"
    alias = result.get("alias")
    if alias and alias["moved"]:
        yield f"alias    {alias['name']} points to it"
    elif alias:
        remedy = to_cli_remedy({"param": alias["error"].get("param"), "mens": alias["error"]})
        yield f"alias    {alias['name']} was not moved: {alias['error']['code']}. {remedy}"
