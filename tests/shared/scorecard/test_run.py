"""A scorecard's folder: written while it runs, continued after an interruption, and consistent when it is verified."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.checkers.contained import ContainedCheckers
from shared.errors import Code, Conflict, InvalidRequest, Unavailable
from shared.scorecard.artifacts import ScorecardFolder, read_events, read_summary
from shared.scorecard.attempts import Generate, Message, ModelAnswer
from shared.scorecard.records import ScorecardEvent
from shared.scorecard.run import run_scorecard
from shared.scorecard.spec import ScorecardCondition, ScorecardSpec, ScorecardTask, read_spec
from tests.support.scorecards import scorecard_spec

pytestmark = pytest.mark.network

EXAMPLE = Path(__file__).parents[3] / "examples" / "scorecard" / "python.json"
GOOD = "def f(values):\n    return [2 * value for value in values]\n"


@pytest.fixture(scope="module")
def checkers() -> Iterator[ContainedCheckers]:
    with ContainedCheckers(seconds=60) as running:
        yield running


class TaskSampler:
    """Answers every task; from the n-th request on the server is away."""

    def __init__(self, fails_from: int = 1_000) -> None:
        self.asked: list[tuple[str, str]] = []
        self.fails_from = fails_from

    def __call__(self, condition: ScorecardCondition, task: ScorecardTask) -> Generate:
        def generate(_messages: list[Message], _attempt: int) -> ModelAnswer:
            if len(self.asked) >= self.fails_from:
                raise Unavailable(Code.SERVING_FAILED, "away")
            self.asked.append((condition.id, task.id))
            return ModelAnswer(GOOD, 3, 4, 5.0)

        return generate


def run(
    folder: Path, sample: TaskSampler, checkers: ContainedCheckers, spec: ScorecardSpec | None = None
) -> list[tuple[str, int, int]]:
    reports: list[tuple[str, int, int]] = []

    def report(event: ScorecardEvent, done: int, total: int) -> None:
        reports.append((event.task_id, done, total))

    made = spec or ScorecardSpec.model_validate(scorecard_spec(3))
    run_scorecard(made, Path("spec.json"), ScorecardFolder(folder), sample, checkers, report)
    return reports


def faults(folder: Path, checkers: ContainedCheckers) -> list[str]:
    return list(ScorecardFolder(folder).faults(lambda text: checkers.check("python", text)))


def test_the_examples_are_run_from_recorded_answers(tmp_path: Path, checkers: ContainedCheckers) -> None:
    spec = read_spec(EXAMPLE)
    folder = ScorecardFolder(tmp_path)
    summary = run_scorecard(spec, EXAMPLE, folder, TaskSampler(fails_from=0), checkers, lambda *_: None, "abc")
    first, second = summary.conditions
    assert (first.compile_pass_at_1, first.compile_pass_at_n, first.repair_stall_rate) == (0, 0.5, 0.5)
    assert (second.compile_pass_at_1, second.task_success, second.anti_stub_pass_rate) == (1, 1, 1)
    assert read_summary(tmp_path / "summary.json") == summary
    assert summary.git_sha == "abc"
    assert faults(tmp_path, checkers) == []


def test_a_recorded_answer_that_is_missing_is_named(tmp_path: Path, checkers: ContainedCheckers) -> None:
    path = tmp_path / "spec.json"
    path.write_bytes(EXAMPLE.read_bytes())
    with pytest.raises(InvalidRequest, match=r"answers/first/word_count.txt is missing"):
        run_scorecard(read_spec(path), path, ScorecardFolder(tmp_path / "o"), TaskSampler(), checkers, lambda *_: None)


def test_a_run_that_was_interrupted_continues(tmp_path: Path, checkers: ContainedCheckers) -> None:
    broken = TaskSampler(fails_from=4)
    with pytest.raises(Unavailable):
        run(tmp_path, broken, checkers)
    assert not (tmp_path / "summary.json").exists()
    rest = TaskSampler()
    assert run(tmp_path, rest, checkers) == [("task_1", 5, 6), ("task_2", 6, 6)]
    assert [*broken.asked, *rest.asked] == [(name, f"task_{number}") for name in ("new", "old") for number in range(3)]
    assert len(list(read_events(tmp_path / "events.all.jsonl"))) == 6
    assert faults(tmp_path, checkers) == []


def test_a_line_that_was_cut_off_is_run_again(tmp_path: Path, checkers: ContainedCheckers) -> None:
    run(tmp_path, TaskSampler(), checkers)
    events = tmp_path / "new" / "events.jsonl"
    events.write_text(events.read_text()[:-20])
    again = TaskSampler()
    run(tmp_path, again, checkers)
    assert again.asked == [("new", "task_2")]
    assert faults(tmp_path, checkers) == []


def test_a_folder_of_another_spec_is_left_alone(tmp_path: Path, checkers: ContainedCheckers) -> None:
    run(tmp_path, TaskSampler(), checkers)
    other = ScorecardSpec.model_validate(scorecard_spec(2))
    with pytest.raises(Conflict) as refused:
        run(tmp_path, TaskSampler(), checkers, other)
    assert refused.value.code == Code.SCORECARD_MISMATCH


def test_an_unknown_validator_is_refused_before_anything_is_written(
    tmp_path: Path, checkers: ContainedCheckers
) -> None:
    spec = ScorecardSpec.model_validate({**scorecard_spec(1), "validator": "vox"})
    with pytest.raises(InvalidRequest) as refused:
        run(tmp_path / "new", TaskSampler(), checkers, spec)
    assert refused.value.code == Code.CHECKER_NOT_FOUND
    assert not (tmp_path / "new").exists()


def test_results_that_were_written_by_hand_are_found(tmp_path: Path, checkers: ContainedCheckers) -> None:
    run(tmp_path, TaskSampler(), checkers)
    (tmp_path / "new" / "outputs" / "task_1.1.txt").write_text("def f(:")
    (tmp_path / "old" / "outputs" / "task_0.1.txt").unlink()
    summary = json.loads((tmp_path / "summary.json").read_bytes())
    summary["conditions"][1]["task_success"] = 0.5
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    found = faults(tmp_path, checkers)
    assert len(found) == 3
    assert found[0].startswith("new/events.jsonl: task_1: the answers give a different ")
    assert "compile_pass_1" in found[0]
    assert found[1:] == ["old/outputs lacks task_0.1.txt", "summary.json: old does not match its events"]


def test_a_row_that_does_not_fit_has_file_line_and_field(tmp_path: Path, checkers: ContainedCheckers) -> None:
    run(tmp_path, TaskSampler(), checkers)
    path = tmp_path / "new" / "events.jsonl"
    lines = path.read_text().splitlines()
    lines[1] = lines[1].replace('"attempts":1', '"attempts":0')
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InvalidRequest, match=r"new/events.jsonl, line 2: attempts: "):
        faults(tmp_path, checkers)
