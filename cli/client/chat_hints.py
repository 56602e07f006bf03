"""Hints on chats with a tuned model: the command after a training, and why an answer may be empty.

A model that was trained with a system turn has not learnt to answer without it, so both hints name that turn.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from cli.client.connection import find
from cli.client.self_evaluation import read_evaluation
from cli.output import on_one_line
from shared.model_card.evaluation_rows import MAX_CHARACTERS
from shared.model_card.self_evaluation import RowSource, SampleAnswer

LONGEST_SYSTEM, LONGEST_MESSAGE = 200, 80
"""Largest number of characters of an argument that is written out in a command."""
ANY_ERROR = range(400, 600)
"""Response statuses at which a hint is left out, because a failed look-up must not hide the answer."""


def describe_chat(job: Mapping[str, Any]) -> Iterator[str]:
    """Yield the command that chats with a job's published adapter; the command includes the system turn if the job's
    rows have one.
    """
    result, alias = job["result"], job["result"].get("alias") or {"moved": False}
    name = alias["name"] if alias["moved"] else result.get("adapter_id")
    if not (job["state"] == "succeeded" and name and job["contract"].get("artifact", {}).get("publish")):
        return
    evaluation = read_evaluation(result)
    sample = evaluation.system_sample if evaluation else None
    if not (evaluation and sample and sample.system):
        yield f'next: mens chat {shlex.quote(name)} "…"'
        return
    whole = _fits(sample.system, LONGEST_SYSTEM)
    system = shlex.quote(sample.system) if whole else f'"{_beginning(sample.system)}…"'
    yield f"next: mens chat {shlex.quote(name)} --system {system} {_message(sample)}"
    if not whole:
        file = "validation file" if evaluation.source is RowSource.VALIDATION_FILE else "training file"
        yield f"      replace this with the complete system turn, from line {sample.line} of the {file}"


def describe_empty(name: str, system: str | None, max_tokens: int, finish_reason: str | None) -> str:
    """Report that a model's answer was empty, and suggest the system turn of its training, or more tokens."""
    said = f"note: {name} returned an empty answer"
    if finish_reason == "length":
        return (
            f"{said}: the limit of {max_tokens} tokens was reached before the answer began; raise it with --max-tokens"
        )
    if system is None and (sample := _trained_with(name)) and sample.system:
        return f'{said}: it was trained with a system turn; add it with --system "{_beginning(sample.system)}…"'
    return said


def _trained_with(name: str) -> SampleAnswer | None:
    """Return a sample of the training of the adapter behind a name if its rows have a system turn."""
    model = find(f"/v1/models/{quote(name, safe='')}", absent=ANY_ERROR)
    mens = model["mens"] if model else {}
    if stands_for := mens.get("stands_for"):
        return _trained_with(stands_for["name"])
    adapter = find(f"/v1/adapters/{quote(mens.get('adapter_id', name), safe='')}", absent=ANY_ERROR)
    evaluation = read_evaluation(adapter["metrics"]) if adapter else None
    return evaluation.system_sample if evaluation else None


def _message(sample: SampleAnswer) -> str:
    """Return the sample's own prompt as an argument if it is short and the row's only question."""
    alone = sample.turns == len(("system", "user")) and sample.role == "user"
    return shlex.quote(sample.prompt) if alone and _fits(sample.prompt, LONGEST_MESSAGE) else '"…"'


def _fits(text: str, limit: int) -> bool:
    """Return whether a string can be written out: short, and without characters that steer a terminal."""
    return len(text) <= min(limit, MAX_CHARACTERS) and text.isprintable()


def _beginning(text: str) -> str:
    return on_one_line(text).replace('"', "")[:40]
