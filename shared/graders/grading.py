"""Compute the score of one answer by one grader. Start reading here.

A grader's templates use an ``item``, which is the row of a data set, and a ``sample``, which is the answer to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.checkers.contained import ContainedCheckers
from shared.errors import Code, InvalidRequest
from shared.graders.checks import Schema, matches, parse_json, tool_calls_are_valid, tool_calls_equal
from shared.graders.code_checks import compiled_language, passes_code_check, require_code_check
from shared.graders.formula import Formula
from shared.graders.model_graders import Ask, Embed, check_text_alone, judge_request, score_of
from shared.graders.pass_at_k import pass_at_k
from shared.graders.templates import render
from shared.graders.text_similarity import cosine, no_embeddings, similarity
from shared.graders.types import (
    AntiStubCheck,
    CodeCheck,
    CompilesCheck,
    Grader,
    LabelModel,
    MultiGrader,
    PassAtKCheck,
    PythonGrader,
    RegexCheck,
    SchemaCheck,
    ScoreModel,
    ShortForm,
    StringCheck,
    TextSimilarity,
    ToolCallCheck,
)
from shared.sandbox.client import Sandbox

Item = Mapping[str, Any]
Sample = Mapping[str, Any]
OF_THE_ANSWER = frozenset({Code.GRADER_SAMPLE_INVALID, Code.GRADER_FAILED, Code.GRADER_TIMEOUT})
"""Codes of missing scores that are the answer's own fault, so that it counts as failed. They include code that raises
or takes too long, as at OpenAI: otherwise an answer that makes a grader run endlessly would be left out of comparisons.
"""


@dataclass(frozen=True, slots=True)
class Grade:
    """Score of one answer.

    Attributes:
        sub_scores: scores of the parts of a ``multi`` grader, by name.
        usage: tokens used by each judging model, by its requested name.
    """

    score: float
    sub_scores: dict[str, float] = field(default_factory=dict)
    usage: dict[str, dict[str, Any]] = field(default_factory=dict)


def make_sample(text: str, tool_calls: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Make the ``sample`` of an answer; it has ``output_json`` only if the answer is JSON."""
    message = {"role": "assistant", "content": text, "tool_calls": [*tool_calls]}
    sample: dict[str, Any] = {
        "output_text": text,
        "output_tools": message["tool_calls"],
        "choices": [{"message": message}],
    }
    try:
        sample["output_json"] = parse_json(text)
    except ValueError:
        pass
    return sample


def has_code(grader: Grader) -> bool:
    """Return whether a grader runs a user's code, or a compiler on it, so that it needs a sandbox."""
    return any(part.mens is None or _is_compiled(part) for part in _python_parts(grader))


def require_compilers(graders: Iterable[Grader], sandbox: Sandbox) -> None:
    """Raise an error unless the compilers of these graders may run in a sandbox; call it before the first answer is
    judged.
    """
    for part in (part for grader in graders for part in _python_parts(grader)):
        if isinstance(part.mens, CodeCheck) and _is_compiled(part):
            require_code_check(part.mens, sandbox)


def _python_parts(grader: Grader) -> Iterator[PythonGrader]:
    """Iterate over the ``python`` graders that judge an answer, also those inside ``multi`` graders and pass@k."""
    if isinstance(grader, MultiGrader):
        for part in grader.graders.values():
            yield from _python_parts(part)
    elif isinstance(grader, PythonGrader) and isinstance(grader.mens, PassAtKCheck):
        yield from _python_parts(grader.mens.of)
    elif isinstance(grader, PythonGrader):
        yield grader


def _is_compiled(grader: PythonGrader) -> bool:
    return isinstance(grader.mens, CodeCheck) and compiled_language(grader.mens) is not None


def check_runnable(grader: Grader, sandbox: Sandbox | None = None, *, embeds: bool = False) -> None:
    """Raise an error unless a grader can be run here for every answer; checks the parts of ``multi`` graders too.

    Args:
        sandbox: sandbox in which code and compilers run; without it they are refused.
        embeds: whether a model for embeddings is available, which ``cosine`` needs.

    Raises:
        InvalidRequest: ``SANDBOX_UNAVAILABLE``: it runs code or a compiler, and has no sandbox to run it in.
            ``GRADER_UNSUPPORTED``.
    """
    if isinstance(grader, MultiGrader):
        for part in grader.graders.values():
            check_runnable(part, sandbox, embeds=embeds)
    elif isinstance(grader, PythonGrader):
        if grader.mens is None:
            _needed(sandbox, grader).check(grader.source)
        else:
            _check_short_form(grader.mens, sandbox)
    elif isinstance(grader, TextSimilarity) and grader.evaluation_metric == "cosine":
        if not embeds:
            raise no_embeddings()
    elif isinstance(grader, TextSimilarity) and grader.evaluation_metric == "meteor":
        # WordNet is loaded at its first use; a call shows whether it is installed.
        similarity(grader.evaluation_metric, "a", "b")
    elif isinstance(grader, ScoreModel | LabelModel):
        for turn in grader.input:
            check_text_alone(turn)


def _needed(sandbox: Sandbox | None, grader: PythonGrader) -> Sandbox:
    if sandbox is None:
        message = f"The grader {grader.name!r} is Python code, but this machine has no sandbox to run it in."
        remedy = (
            "Use another grader, or a check in its block `mens`: regex, json_schema, tool_calls, compiles, "
            "anti_stub, pass_at_k."
        )
        raise InvalidRequest(Code.SANDBOX_UNAVAILABLE, message, remedy=remedy, param="grader")
    return sandbox


def _check_short_form(check: ShortForm, sandbox: Sandbox | None) -> None:
    if isinstance(check, RegexCheck):
        matches(check.pattern, "")
    elif isinstance(check, SchemaCheck):
        Schema(check.json_schema)
    elif isinstance(check, CodeCheck):
        require_code_check(check, sandbox)
    elif isinstance(check, PassAtKCheck):
        check_runnable(check.of, sandbox)
    else:
        for tool in check.tools or ():
            Schema((tool.get("function") or {}).get("parameters") or {})


def grade(
    grader: Grader,
    item: Item,
    sample: Sample,
    ask: Ask | None = None,
    checkers: ContainedCheckers | None = None,
    sandbox: Sandbox | None = None,
    embed: Embed | None = None,
) -> Grade:
    """Grade an answer.

    Args:
        item: the value of ``item`` in templates.
        sample: the value of ``sample`` in templates; :func:`make_sample` makes one.
        ask: sends the requests of model graders; without it they are refused.
        checkers: checks code; without it a process is started for each check.
        sandbox: sandbox in which code and compilers run; without it they are refused.
        embed: makes the embeddings of ``cosine``; without it that is refused.

    Raises:
        InvalidRequest: the errors of :func:`check_runnable`, the templates, formulas, checks, model graders and
            :meth:`shared.sandbox.client.Sandbox.grade`; ``GRADER_UNSUPPORTED`` without ``ask``. Also the errors of
            ``ask`` and ``embed``.
    """
    if isinstance(grader, StringCheck):
        return Grade(_string_check(grader, item, sample))
    if isinstance(grader, TextSimilarity):
        text, reference = render(grader.input, item, sample), render(grader.reference, item, sample)
        return Grade(_similarity(grader, text, reference, embed))
    if isinstance(grader, PythonGrader):
        return Grade(_python_score(grader, item, sample, checkers, sandbox))
    if isinstance(grader, MultiGrader):
        grades = {
            name: grade(part, item, sample, ask, checkers, sandbox, embed) for name, part in grader.graders.items()
        }
        scores = {name: grade.score for name, grade in grades.items()}
        return Grade(Formula(grader.calculate_output)(scores), scores, _sum_usage(grades.values()))
    return _ask_model(grader, item, sample, ask)


def is_passed(grader: Grader, score: float) -> bool:
    """Return whether an eval's criterion is met: the threshold is reached; without one, the score is 1 or more."""
    threshold = getattr(grader, "pass_threshold", None)
    return score >= (1.0 if threshold is None else threshold)


def _string_check(grader: StringCheck, item: Item, sample: Sample) -> float:
    text, reference = render(grader.input, item, sample), render(grader.reference, item, sample)
    return float(
        {
            "eq": text == reference,
            "ne": text != reference,
            "like": reference in text,
            "ilike": reference.casefold() in text.casefold(),
        }[grader.operation]
    )


def _similarity(grader: TextSimilarity, text: str, reference: str, embed: Embed | None) -> float:
    if grader.evaluation_metric != "cosine":
        return similarity(grader.evaluation_metric, text, reference)
    if embed is None:
        raise no_embeddings()
    return cosine(*embed([text, reference]))


def _python_score(
    grader: PythonGrader, item: Item, sample: Sample, checkers: ContainedCheckers | None, sandbox: Sandbox | None
) -> float:
    if grader.mens is None:
        return _needed(sandbox, grader).grade(grader.source, sample, item)
    _check_short_form(grader.mens, sandbox)
    if isinstance(grader.mens, PassAtKCheck):
        return _pass_at_k(grader.mens, item, sample, checkers, sandbox)
    return float(_passes(grader.mens, item, sample, checkers, sandbox))


def _pass_at_k(
    check: PassAtKCheck, item: Item, sample: Sample, checkers: ContainedCheckers | None, sandbox: Sandbox | None
) -> float:
    messages = [choice.get("message") or {} for choice in sample.get("choices") or ()]
    if len(messages) < check.k:
        message = f"pass@{check.k} needs at least {check.k} answers; the sample has {len(messages)}."
        raise InvalidRequest(
            Code.GRADER_INVALID, message, remedy="Set k to 1, or send a sample with more choices.", param="mens.k"
        )
    answers = [make_sample(turn.get("content") or "", turn.get("tool_calls") or ()) for turn in messages]
    scores = [grade(check.of, item, answer, checkers=checkers, sandbox=sandbox).score for answer in answers]
    return pass_at_k(len(answers), sum(is_passed(check.of, score) for score in scores), check.k)


def _passes(
    check: RegexCheck | SchemaCheck | ToolCallCheck | CompilesCheck | AntiStubCheck,
    item: Item,
    sample: Sample,
    checkers: ContainedCheckers | None,
    sandbox: Sandbox | None,
) -> bool:
    if isinstance(check, CompilesCheck | AntiStubCheck):
        return passes_code_check(check, render(check.input, item, sample), checkers, sandbox)
    if isinstance(check, RegexCheck):
        return matches(check.pattern, render(check.input, item, sample))
    if isinstance(check, SchemaCheck):
        return Schema(check.json_schema).accepts_text(render(check.input, item, sample))
    calls = sample.get("output_tools") or []
    if check.tools is not None and not tool_calls_are_valid(calls, check.tools):
        return False
    return bool(calls) if check.expected is None else tool_calls_equal(calls, check.expected)


def _ask_model(grader: ScoreModel | LabelModel, item: Item, sample: Sample, ask: Ask | None) -> Grade:
    if ask is None:
        message = f"The grader {grader.name!r} needs the model {grader.model}, but no model is available here."
        raise InvalidRequest(
            Code.GRADER_UNSUPPORTED, message, remedy="Use a grader that does not need a model.", param="model"
        )
    completion = ask(judge_request(grader, item, sample))
    return Grade(score_of(grader, completion), usage={grader.model: completion.get("usage") or {}})


def _sum_usage(grades: Iterable[Grade]) -> dict[str, dict[str, Any]]:
    total: dict[str, dict[str, Any]] = {}
    for model, usage in (entry for part in grades for entry in part.usage.items()):
        sums = total.setdefault(model, {})
        for name, count in usage.items():
            if isinstance(count, int):
                sums[name] = sums.get(name, 0) + count
    return total
