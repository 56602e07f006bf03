"""One task under one condition: an answer, its check, and repairs with the diagnostics until it compiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shared.checkers.answers import code_of
from shared.checkers.anti_stub import measure_substance
from shared.checkers.checker import Check
from shared.scorecard.records import ScorecardEvent
from shared.scorecard.spec import ScorecardCondition, ScorecardSpec, ScorecardTask

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """An answer of a model.

    Attributes:
        tokens_in, tokens_out: as the server counted them; 0 for a recorded answer.
    """

    text: str
    tokens_in: int = 0
    tokens_out: int = 0
    latency_ms: float = 0.0


Generate = Callable[[list[Message], int], ModelAnswer | None]
"""Returns the answer to messages, at the n-th attempt (from 1); None if no answer is left, as after the last recorded
one.
"""
CheckText = Callable[[str], Check]


def run_task(
    spec: ScorecardSpec,
    condition: ScorecardCondition,
    task: ScorecardTask,
    generate: Generate,
    check: CheckText,
) -> tuple[ScorecardEvent, list[ModelAnswer]] | None:
    """Send requests until the answer compiles, the retries are used up, or the same errors recur.

    Returns:
        The event and the answers in order; None without any answer.
    """
    messages = first_messages(spec, task)
    answers: list[ModelAnswer] = []
    checks: list[Check] = []
    while len(answers) <= spec.max_retries and (answer := generate(messages, len(answers) + 1)):
        answers.append(answer)
        checks.append(check(code_of(answer.text).code))
        if checks[-1].compiles or is_stalled(checks):
            break
        messages = [
            *messages,
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": repair_prompt(checks[-1])},
        ]
    return (make_event(condition, task, answers, checks, check), answers) if answers else None


def first_messages(spec: ScorecardSpec, task: ScorecardTask) -> list[Message]:
    """Return the first messages to a model."""
    system = [{"role": "system", "content": spec.system_prompt}] if spec.system_prompt else []
    return [*system, {"role": "user", "content": task.prompt}]


def repair_prompt(check: Check) -> str:
    """Return the message to a model about an answer that does not compile."""
    faults = "\n".join(f"- {fault}" for fault in check.diagnostics)
    return f"This does not compile:\n{faults}\nReturn the whole corrected code, and nothing else."


def is_stalled(checks: Sequence[Check]) -> bool:
    """Return whether the last attempt has the same errors as an earlier one, wherever they are."""
    return checks[-1].signature in {check.signature for check in checks[:-1]}


def make_event(
    condition: ScorecardCondition,
    task: ScorecardTask,
    answers: Sequence[ModelAnswer],
    checks: Sequence[Check],
    check: CheckText,
) -> ScorecardEvent:
    """Make the event of a task's attempts."""
    last_check, text = checks[-1], answers[-1].text
    answer = code_of(text)
    substance = measure_substance(answer.code, last_check)
    latency = sum(attempt.latency_ms for attempt in answers)
    return ScorecardEvent(
        condition_id=condition.id,
        backend=condition.backend,
        task_id=task.id,
        attempts=len(answers),
        compile_pass_1=checks[0].compiles,
        compile_pass_n=last_check.compiles,
        repair_depth=len(answers) - 1 if last_check.compiles else None,
        # Fenced code compiles only in a format with fences, such as Markdown.
        canonical_pass=last_check.compiles and (answer.is_bare or check(text).compiles),
        voxelized_strictness=answer.strictness,
        task_success=last_check.compiles and all(part in answer.code for part in task.expected_contains),
        semantic_task_success=last_check.compiles
        and all(part in answer.code for part in task.semantic_expected_contains),
        hir_error_count=len(last_check.diagnostics),
        latency_ms=latency,
        time_to_first_valid_ms=latency if last_check.compiles else None,
        repair_stalled=not last_check.compiles and len(checks) > 1 and is_stalled(checks),
        tokens_in=sum(attempt.tokens_in for attempt in answers),
        tokens_out=sum(attempt.tokens_out for attempt in answers),
        placeholder_marker_hits=substance.markers,
        trivial_placeholder_output=substance.is_trivial,
        construct_richness_score=substance.richness,
        anti_stub_pass=last_check.compiles and substance.passes,
    )
