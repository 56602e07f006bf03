"""The folder of a scorecard: written as it runs, and checked against the run when it is read.

spec.json                     the spec, as it was parsed
CONDITION/events.jsonl        one event a task
CONDITION/outputs/TASK.N.txt  the answer of the n-th attempt
events.all.jsonl              all events, in the order of the spec
summary.json
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from shared.checkers.answers import code_of
from shared.durable_files import write_durably
from shared.errors import Code, Conflict, InvalidRequest
from shared.scorecard.attempts import CheckText, ModelAnswer, make_event
from shared.scorecard.records import ScorecardEvent, ScorecardSummary
from shared.scorecard.spec import ScorecardCondition, ScorecardSpec, ScorecardTask, read_spec
from shared.scorecard.summary import summarize

SPEC, EVENTS, ALL_EVENTS, SUMMARY, OUTPUTS = (
    "spec.json", "events.jsonl", "events.all.jsonl", "summary.json", "outputs",
)  # fmt: skip
MEASURED = {"latency_ms", "time_to_first_valid_ms", "tokens_in", "tokens_out"}
"""Fields of an event that cannot be recomputed from its answers."""


class ScorecardFolder:
    """One scorecard's files.

    Args:
        path: the folder's path.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def open_for(self, spec: ScorecardSpec) -> None:
        """Create the folder, or continue in it if it was begun with the same spec.

        Raises:
            Conflict: ``SCORECARD_MISMATCH``: it contains a different scorecard.
        """
        if (self.path / SPEC).exists() and read_spec(self.path / SPEC) != spec:
            message = f"{self.path} has a scorecard of another spec."
            raise Conflict(Code.SCORECARD_MISMATCH, message, remedy="Choose another folder, or delete this one.")
        self.path.mkdir(parents=True, exist_ok=True)
        write_durably(self.path / SPEC, spec.model_dump_json(indent=2) + "\n")

    def events(self, condition_id: str) -> list[ScorecardEvent]:
        """Read the events of a condition so far. A truncated last line is dropped, so that its task runs again.

        Raises:
            InvalidRequest: ``SCORECARD_INVALID``, with file and line.
        """
        path = self.path / condition_id / EVENTS
        if not path.exists():
            return []
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            write_durably(path, whole)
        return list(read_events(path))

    def add(self, event: ScorecardEvent, answers: Sequence[ModelAnswer]) -> None:
        """Store a task's answers, then its event: a task with an event is complete."""
        outputs = self.path / event.condition_id / OUTPUTS
        outputs.mkdir(parents=True, exist_ok=True)
        for number, answer in enumerate(answers, start=1):
            write_durably(outputs / f"{event.task_id}.{number}.txt", answer.text)
        with (self.path / event.condition_id / EVENTS).open("a", encoding="utf-8") as file:
            file.write(event.model_dump_json() + "\n")

    def finish(
        self, spec: ScorecardSpec, spec_path: str, git_sha: str | None, run_started_utc: str
    ) -> ScorecardSummary:
        """Write all events and the summary."""
        by_condition = {condition.id: _in_order(spec, self.events(condition.id)) for condition in spec.conditions}
        everything = [event for events in by_condition.values() for event in events]
        summary = ScorecardSummary(
            schema="vox_mens_scorecard_summary_v1",
            prompt_pack_version=spec.prompt_pack_version,
            git_sha=git_sha,
            run_started_utc=run_started_utc,
            spec_path=spec_path,
            conditions=[summarize(condition, by_condition[condition.id]) for condition in spec.conditions],
        )
        write_durably(self.path / ALL_EVENTS, "".join(event.model_dump_json() + "\n" for event in everything))
        write_durably(self.path / SUMMARY, summary.model_dump_json(indent=2, by_alias=True) + "\n")
        return summary

    def faults(self, check: CheckText) -> Iterator[str]:
        """Find all faults of a finished scorecard: files, schemas, sums, and events that do not follow from their
        answers.

        Args:
            check: result of the spec's validator.

        Raises:
            InvalidRequest: ``SCORECARD_INVALID``: a file is missing or does not fit its schema.
        """
        spec, summary = read_spec(self.path / SPEC), read_summary(self.path / SUMMARY)
        everything: list[ScorecardEvent] = []
        for condition in spec.conditions:
            events = list(read_events(self.path / condition.id / EVENTS))
            yield from self._event_faults(spec, condition, events, check)
            everything += _in_order(spec, events)
        if list(read_events(self.path / ALL_EVENTS)) != everything:
            yield f"{ALL_EVENTS} does not match the events of the conditions"
        by_id = {condition.id: condition for condition in summary.conditions}
        for condition in spec.conditions:
            events = [event for event in everything if event.condition_id == condition.id]
            if events and by_id.get(condition.id) != summarize(condition, events):
                yield f"{SUMMARY}: {condition.id} does not match its events"

    def _event_faults(
        self, spec: ScorecardSpec, condition: ScorecardCondition, events: Sequence[ScorecardEvent], check: CheckText
    ) -> Iterator[str]:
        tasks = {task.id: task for task in spec.tasks}
        names = [event.task_id for event in events]
        if sorted(names) != sorted(tasks):
            yield f"{condition.id}/{EVENTS} does not have exactly one event for each task"
        for event in events:
            if event.task_id in tasks and event.condition_id == condition.id:
                yield from self._output_faults(condition, tasks[event.task_id], event, check)

    def _output_faults(
        self, condition: ScorecardCondition, task: ScorecardTask, event: ScorecardEvent, check: CheckText
    ) -> Iterator[str]:
        outputs = self.path / condition.id / OUTPUTS
        paths = [outputs / f"{task.id}.{number}.txt" for number in range(1, event.attempts + 1)]
        if missing := [path.name for path in paths if not path.exists()]:
            yield f"{condition.id}/{OUTPUTS} lacks {', '.join(missing)}"
            return
        answers = [ModelAnswer(path.read_text(encoding="utf-8")) for path in paths]
        checks = [check(code_of(answer.text).code) for answer in answers]
        again = make_event(condition, task, answers, checks, check)
        shown, recorded = again.model_dump(exclude=MEASURED), event.model_dump(exclude=MEASURED)
        if differing := [name for name in shown if shown[name] != recorded[name]]:
            yield f"{condition.id}/{EVENTS}: {task.id}: the answers give a different {', '.join(differing)}"


def read_events(path: Path) -> Iterator[ScorecardEvent]:
    """Read the events of a JSONL file.

    Raises:
        InvalidRequest: ``SCORECARD_INVALID``, with file, line and field.
    """
    for number, line in enumerate(_read(path).splitlines(), start=1):
        try:
            yield ScorecardEvent.model_validate(json.loads(line))
        except ValueError as error:
            raise _misfit(f"{path}, line {number}", error) from None


def read_summary(path: Path) -> ScorecardSummary:
    """Read a summary file.

    Raises:
        InvalidRequest: ``SCORECARD_INVALID``, with file and field.
    """
    try:
        return ScorecardSummary.model_validate(json.loads(_read(path)))
    except ValueError as error:
        raise _misfit(str(path), error) from None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        remedy = "To complete an interrupted scorecard, run it again with the same --output."
        raise InvalidRequest(
            Code.SCORECARD_INVALID,
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.",
            remedy=remedy,
        ) from None


def _misfit(place: str, error: ValueError) -> InvalidRequest:
    reason = f"it is not JSON: {error}"
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        reason = f"{'.'.join(map(str, first['loc'])) or 'the row'}: {first['msg']}"
    return InvalidRequest(Code.SCORECARD_INVALID, f"{place}: {reason}.", details={"file": place})


def _in_order(spec: ScorecardSpec, events: Iterable[ScorecardEvent]) -> list[ScorecardEvent]:
    order = {task.id: number for number, task in enumerate(spec.tasks)}
    return sorted(events, key=lambda event: order.get(event.task_id, len(order)))
