"""Archives with recorded answers: the project of a fake OpenAI, exported and recorded by the real steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openai_migration.archive.contents import ArchiveContents
from openai_migration.archive.export import export_project
from openai_migration.archive.folder import Archive
from openai_migration.prompts import choose_prompts
from openai_migration.record import (
    Bounds,
    ModelPlan,
    RecordedSampling,
    Recording,
    questions,
    record_answers,
    write_golden,
)
from tests.support.fake_openai import KEY, TUNED, Object, ServedOpenAI, chat_line

PROJECT = "OPENAI_API_KEY"
EXACT = {
    "type": "string_check",
    "name": "exact",
    "id": "exact-1",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.expected }}",
    "operation": "eq",
}


def right_answer(request: Object) -> str:
    """Answer of a model that has learned the validation rows: the same number as in the question."""
    words = str(request["messages"][-1]["content"]).strip("?").split()
    return f"Answer {words[-1]}."


def with_rows(openai: ServedOpenAI, count: int) -> None:
    """Give the project this number of validation rows, which its tuned model answers correctly, and no other prompts."""
    lists = openai.fake.projects[KEY].lists
    lists |= {"evals": [], f"chat/completions?{TUNED}": []}
    rows = b"".join(chat_line(f"Question {number}?", f"Answer {number}.") for number in range(count))
    openai.fake.projects[KEY].contents["file-valid"] = rows
    openai.fake.complete = lambda request: right_answer(request) if request["model"] == TUNED else "What?"


def with_eval(openai: ServedOpenAI, count: int, *criteria: Object, scores: float = 1.0) -> None:
    """Give the project an eval whose items the tuned model has answered, with a stored score for each criterion."""
    items = [_output_item(number, criteria, scores) for number in range(count)]
    lists = openai.fake.projects[KEY].lists
    lists["evals"] = [{"id": "eval_0", "object": "eval", "name": "Tone", "testing_criteria": list(criteria)}]
    lists["evals/eval_0/runs"] = [{"id": "evalrun_0", "model": TUNED}]
    lists["evals/eval_0/runs/evalrun_0/output_items"] = items


def _output_item(number: int, criteria: tuple[Object, ...], score: float) -> Object:
    return {
        "id": f"outputitem_{number}",
        "object": "eval.run.output_item",
        "datasource_item": {"expected": f"Answer {number}."},
        "sample": {
            "input": [{"role": "user", "content": f"Item {number}?"}],
            "output": [{"role": "assistant", "content": f"Answer {number}."}],
        },
        "results": [{"name": each["id"], "passed": score == 1.0, "score": score} for each in criteria],
    }


def record_archive(openai: ServedOpenAI, folder: Path, *, samples: int = 0, control: bool = False) -> ArchiveContents:
    """Export the project, and record its tuned model and, as a control, its base."""
    with Archive(folder) as archive, openai.client(project=PROJECT) as client:
        export_project(client, archive)
        archive.finish()
        choice = choose_prompts(ArchiveContents(folder), PROJECT, TUNED, limit=500)
        plan = ModelPlan(
            PROJECT, TUNED, choice, list(questions(TUNED, choice, RecordedSampling(samples=samples, control=control)))
        )
        record_answers(client, archive, [plan], Bounds(), Recording())
        write_golden(archive, plan)
        archive.finish()
    return ArchiveContents(folder)


def completion(text: str, finish_reason: str = "stop", **message: Any) -> Object:
    """A chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish_reason}
    return {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "usage": {}}
