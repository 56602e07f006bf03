"""Run a scorecard: every task under every condition, each stored when it is done, so that a run can be resumed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from shared.checkers.contained import ContainedCheckers
from shared.checkers.languages import require_language
from shared.errors import Code, InvalidRequest
from shared.scorecard.artifacts import ScorecardFolder
from shared.scorecard.attempts import Generate, Message, ModelAnswer, run_task
from shared.scorecard.records import ScorecardEvent, ScorecardSummary
from shared.scorecard.spec import ScorecardCondition, ScorecardSpec, ScorecardTask

MakeGenerate = Callable[[ScorecardCondition, ScorecardTask], Generate]
"""Makes the generator of answers to a task under a condition of the mode ``http_generate``."""
Report = Callable[[ScorecardEvent, int, int], None]
"""Called after each task, with its event, the number of finished tasks, and their total."""


def run_scorecard(
    spec: ScorecardSpec,
    spec_path: Path,
    folder: ScorecardFolder,
    sample: MakeGenerate,
    checkers: ContainedCheckers,
    report: Report,
    git_sha: str | None = None,
) -> ScorecardSummary:
    """Run the remaining tasks, and write the summary.

    Raises:
        InvalidRequest: ``SCORECARD_INVALID``: a recorded answer is missing.
        MensError: the errors of ``sample``; finished tasks are kept.
    """
    require_language(spec.validator)
    started = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    folder.open_for(spec)
    done = {condition.id: {event.task_id for event in folder.events(condition.id)} for condition in spec.conditions}
    count, total = sum(map(len, done.values())), len(spec.conditions) * len(spec.tasks)
    for condition in spec.conditions:
        for task in spec.tasks:
            if task.id in done[condition.id]:
                continue
            is_recorded = condition.mode == "fixture_file"
            generate = recorded(spec_path, condition, task) if is_recorded else sample(condition, task)
            outcome = run_task(spec, condition, task, generate, lambda text: checkers.check(spec.validator, text))
            if outcome is None:
                raise _no_answer(condition, task)
            event, answers = outcome
            folder.add(event, answers)
            count += 1
            report(event, count, total)
    return folder.finish(spec, str(spec_path), git_sha, started)


def recorded(spec_path: Path, condition: ScorecardCondition, task: ScorecardTask) -> Generate:
    """Make a generator of answers from files: TASK.txt or TASK.1.txt, then TASK.2.txt, …"""
    folder = spec_path.parent / (condition.fixture_dir or "")

    def generate(_messages: list[Message], attempt: int) -> ModelAnswer | None:
        names = [f"{task.id}.{attempt}.txt", *([f"{task.id}.txt"] if attempt == 1 else [])]
        path = next((folder / name for name in names if (folder / name).is_file()), None)
        return ModelAnswer(path.read_text(encoding="utf-8")) if path else None

    return generate


def _no_answer(condition: ScorecardCondition, task: ScorecardTask) -> InvalidRequest:
    message = (
        f"The condition {condition.id} has no answer to {task.id}: {condition.fixture_dir}/{task.id}.txt is missing."
    )
    return InvalidRequest(
        Code.SCORECARD_INVALID,
        message,
        remedy="Add the file and run it again; completed results are kept.",
        param="conditions.fixture_dir",
    )
