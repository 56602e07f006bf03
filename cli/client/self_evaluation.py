"""A run's self-evaluation as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from cli.output import on_one_line
from shared.model_card.self_evaluation import KEY, SampleAnswer, SelfEvaluation, summarize

WIDTH = 160
"""Most characters of a string on one line."""


def describe_evaluation(values: Mapping[str, Any], label: str, *, brief: bool = False) -> Iterator[str]:
    """Yield lines for a job's result or an adapter's metrics; none if nothing was measured.

    Args:
        values: contains the self-evaluation under its key.
        label: prefix of the first line, as wide as the indent of all others.
        brief: show a wrong answer of each kind in place of all answers.
    """
    evaluation = read_evaluation(values)
    if evaluation is None:
        return
    for number, line in enumerate(summarize(evaluation)):
        yield f"{label if number == 0 else ' ' * len(label)}{line}"
    if brief:
        yield from _describe_wrong(evaluation)
        return
    for number, sample in enumerate(evaluation.sample_answers, start=1):
        yield from _describe_sample(number, sample)
    for answer in evaluation.general_answers:
        judged = {True: "kept", False: "lost", None: "not known by the base"}[answer.kept]
        yield f"general question, {judged}: {_one_line(answer.question)}"
        yield f"  base      {_one_line(answer.base)}"
        yield f"  tuned     {_one_line(answer.tuned)}"


def read_evaluation(values: Mapping[str, Any]) -> SelfEvaluation | None:
    """Return the self-evaluation in a job's result or an adapter's metrics; None without one, or if an earlier or a later
    release made it.
    """
    try:
        return SelfEvaluation.model_validate(values[KEY])
    except (KeyError, ValidationError):
        return None


def _describe_wrong(evaluation: SelfEvaluation) -> Iterator[str]:
    if sample := evaluation.wrong_sample:
        yield f"a row that it answers differently, line {sample.line}:"
        if sample.system:
            yield f"  system    {_one_line(sample.system)}"
        yield f"  question  {_one_line(sample.prompt)}"
        yield f"  expected  {_one_line(sample.reference)}"
        yield f"  got       {_one_line(sample.tuned)}{'' if sample.tuned_ended else ' [cut]'}"
    if answer := evaluation.lost_answer:
        yield "a general question no longer answered correctly:"
        yield f"  question  {_one_line(answer.question)}"
        yield f"  base      {_one_line(answer.base)}"
        yield f"  got       {_one_line(answer.tuned)}"


def _describe_sample(number: int, sample: SampleAnswer) -> Iterator[str]:
    yield f"sample {number}, line {sample.line}"
    if sample.system:
        yield f"  system    {_one_line(sample.system)}"
    yield f"  {sample.role:<9} {_one_line(sample.prompt)}"
    yield f"  reference {_one_line(sample.reference)}"
    yield f"  base      {_one_line(sample.base)}{'' if sample.base_ended else ' [cut]'}"
    yield f"  tuned     {_one_line(sample.tuned)}{'' if sample.tuned_ended else ' [cut]'}"


def _one_line(text: str) -> str:
    return on_one_line(text, WIDTH) or "(nothing)"
